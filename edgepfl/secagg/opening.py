"""The masks that are left in a sum of uploads, from what the devices revealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgepfl.errors import CodecError
from edgepfl.secagg.answers import Graph, shares_of, wanted
from edgepfl.secagg.masks import Mask, pairwise, selfish
from edgepfl.secagg.messages import Keys, Revealed
from edgepfl.secagg.primitives import KeyPair
from edgepfl.secagg.shamir import combine


def masks(
    graph: Graph,
    keys: Mapping[str, Keys],
    threshold: int,
    dealt: Sequence[str],
    survivors: Sequence[str],
    revealed: Mapping[str, Revealed],
    about: bytes,
) -> tuple[Mask, ...]:
    """The masks in the sum of the survivors' uploads: their self-masks, and what they share with dropouts.

    Args:
        graph: see :data:`edgepfl.secagg.answers.Graph`.
        keys: everyone's public keys.
        threshold: shares that open a secret.
        dealt: who exchanged shares.
        survivors: whose uploads are in the sum.
        revealed: by device, what it revealed.
        about: the attempt.

    Raises:
        CodecError: too few shares, or shares of something else.
    """
    alive, found = set(survivors), []
    for device in wanted(graph, dealt, survivors):
        secret = combine(shares_of(graph, device, revealed), threshold)
        if device in alive:
            found.append(selfish(secret, device, about))
            continue
        key = KeyPair(secret)
        if key.public != keys[device].mask:
            raise CodecError(f"the shares of {device}'s key are not of its key", where="secagg")
        for peer in alive.intersection(graph[device]):
            theirs = pairwise(key, device, peer, keys[peer].mask, about)
            found.append(Mask(theirs.key, -theirs.sign))  # as the survivor put it on
    return tuple(found)
