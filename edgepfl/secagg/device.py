"""The device's side of one attempt, as a pure machine.

``advance(state, told, draw) -> (state, step)``: no clock, no socket, no storage; random bytes are passed in.  The same
message again gives the same answer, another one in its place is refused.

What keeps an upload hidden, whatever the coordinator does short of making up devices:

* Keys, self-mask and shares are new in each attempt and live in memory alone: a device that restarts has none, can
  answer nothing, and is a dropout.
* A vector is masked once.
* Of each neighbour it reveals a share of one secret, never of both: one answer to one :class:`Unmask`, which must name
  every neighbour that it shares masks with exactly once.
* More than half of a secret's shares open it, so neighbours that were told different things cannot open both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

import numpy as np

from edgepfl.errors import CodecError
from edgepfl.secagg.fixed import Words
from edgepfl.secagg.masks import Channel, Mask, pairwise, selfish
from edgepfl.secagg.messages import (
    Ask,
    Dealt,
    Deliver,
    For,
    Keys,
    Opens,
    Peer,
    Peers,
    Revealed,
    Said,
    Told,
    Unmask,
)
from edgepfl.secagg.primitives import SECRET, KeyPair
from edgepfl.secagg.shamir import Draw, split

LEAST = 2
"""Neighbours without whom nothing is hidden."""


@dataclass(frozen=True)
class Say:
    """Say this to the coordinator."""

    body: Said


@dataclass(frozen=True)
class Reveal:
    """Say this to the coordinator, after it is noted for good that this round is opened."""

    body: Revealed


@dataclass(frozen=True)
class Ready:
    """The upload can be masked now."""


@dataclass(frozen=True)
class Refuse:
    """Take no further part in this attempt."""

    why: str


Do: TypeAlias = Say | Reveal | Ready | Refuse | None


@dataclass(frozen=True)
class Held:
    """A neighbour's two shares, of which one may be revealed."""

    self_share: bytes = field(repr=False)
    key_share: bytes = field(repr=False)


@dataclass(frozen=True)
class Device:
    """A device in one attempt.

    Attributes:
        name: its own.
        about: the attempt, see :func:`edgepfl.secagg.masks.context`.
        mask: the key of its pairwise masks.
        seal: the key for sealed shares.
        secret: of its self-mask.
        last: what it said last.
        peers: what it was told of its neighbours.
        dealt: its own shares, sealed.
        delivered: what its neighbours sealed for it.
        held: their shares, of those that could be read.
        masked: whether its upload is masked.
        unmask: what it was asked to open.
        refused: why it takes no further part.
    """

    name: str
    about: bytes
    mask: KeyPair
    seal: KeyPair
    secret: bytes = field(repr=False)
    last: Said
    peers: Peers | None = None
    dealt: Dealt | None = None
    delivered: Deliver | None = None
    held: Mapping[str, Held] = field(default_factory=dict, repr=False)
    masked: bool = False
    unmask: Unmask | None = None
    refused: str = ""

    @property
    def keys(self) -> Keys:
        """Its public keys."""
        return Keys(self.mask.public, self.seal.public)

    @property
    def partners(self) -> tuple[str, ...]:
        """The neighbours that it has masks in common with."""
        return () if self.delivered is None else tuple(part.device for part in self.delivered.parts)

    def key_of(self, device: str) -> Keys:
        """A neighbour's public keys."""
        return next(peer.keys for peer in (self.peers.peers if self.peers else ()) if peer.device == device)


Step: TypeAlias = tuple[Device, Do]


def begin(name: str, about: bytes, draw: Draw) -> Step:
    """Make keys for an attempt, and tell them."""
    mask, seal = KeyPair(draw(SECRET)), KeyPair(draw(SECRET))
    keys = Keys(mask.public, seal.public)
    return Device(name, about, mask, seal, draw(SECRET), keys), Say(keys)


def advance(d: Device, told: Told, draw: Draw) -> Step:
    """The next state and what to do about it.  Never raises on a late, repeated or hostile message."""
    if d.refused:
        return d, None
    try:
        match told:
            case Peers():
                return _peers(d, told, draw)
            case Deliver():
                return _deliver(d, told)
            case Unmask():
                return _unmask(d, told)
            case Ask():
                return d, Say(d.last) if not isinstance(d.last, Revealed) else Reveal(d.last)
            case _:
                assert_never(told)
    except CodecError as error:  # a key that is none
        return _refused(d, error.what)


def mask(d: Device, vector: Words) -> tuple[Device, Words]:
    """The vector with all masks on.

    Raises:
        CodecError: not all is here yet, or another vector was masked: the difference of the two would be in the clear.
    """
    if d.delivered is None or d.refused or d.masked:
        why = d.refused or ("an upload is masked already" if d.masked else "the shares are not exchanged yet")
        raise CodecError(why, where="secagg")
    hidden = np.array(vector)  # a copy, which can be written to
    for each in _masks(d):
        each.put_on(hidden)
    return replace(d, masked=True), hidden


def _masks(d: Device) -> list[Mask]:
    pairs = [pairwise(d.mask, d.name, peer, d.key_of(peer).mask, d.about) for peer in d.partners]
    return [selfish(d.secret, d.name, d.about), *pairs]


def _refused(d: Device, why: str) -> Step:
    return replace(d, refused=why), Refuse(why)


def _peers(d: Device, told: Peers, draw: Draw) -> Step:
    if d.peers is not None:
        if told != d.peers:
            return _refused(d, "it is told other neighbours than before")
        return d, Say(d.last) if d.dealt == d.last else None
    if why := _why_not(d, told):
        return _refused(d, why)
    count = len(told.peers)
    shares = zip(
        told.peers,
        split(d.secret, count, told.threshold, draw),
        split(d.mask.private, count, told.threshold, draw),
        strict=True,
    )
    dealt = Dealt(tuple(For(peer.device, _sealed(d, peer, mine, key)) for peer, mine, key in shares))
    return replace(d, peers=told, dealt=dealt, last=dealt), Say(dealt)


def _why_not(d: Device, told: Peers) -> str:
    """Why a device may not deal its shares so."""
    names, count = [peer.device for peer in told.peers], len(told.peers)
    if names != sorted(set(names)) or d.name in names:
        return "the neighbours are not each named once, in order, and without this device"
    if count < LEAST:
        return f"{count} neighbours are too few to hide an upload"
    if not count // 2 < told.threshold <= count:
        return f"{told.threshold} of {count} shares open a secret: not more than half, or too many"
    public = {key for peer in told.peers for key in (peer.keys.mask, peer.keys.seal)} | {d.keys.mask, d.keys.seal}
    return "" if len(public) == 2 * (count + 1) else "two devices have one key"


def _sealed(d: Device, peer: Peer, self_share: bytes, key_share: bytes) -> bytes:
    return Channel.between(d.seal, d.name, peer.device, peer.keys, d.about).seal(self_share, key_share)


def _deliver(d: Device, told: Deliver) -> Step:
    if d.peers is None:
        return d, None  # it came before its time: it comes again
    if d.delivered is not None:
        return (d, None) if told == d.delivered else _refused(d, "it is given other shares than before")
    names = [part.device for part in told.parts]
    if names != sorted(set(names)) or not {peer.device for peer in d.peers.peers}.issuperset(names):
        return _refused(d, "shares of others than its neighbours")
    if len(names) < d.peers.threshold:
        return _refused(d, f"shares of {len(names)} neighbours, and {d.peers.threshold} are needed")
    state = replace(d, delivered=told)
    return replace(state, held={part.device: held for part in told.parts if (held := _read(state, part))}), Ready()


def _read(d: Device, part: For) -> Held | None:
    """A neighbour's shares; None where it has sealed something else, which harms nobody but itself."""
    try:
        channel = Channel.between(d.seal, part.device, d.name, d.key_of(part.device), d.about)
        return Held(*channel.unseal(part.sealed))
    except CodecError:
        return None


def _unmask(d: Device, told: Unmask) -> Step:
    if d.unmask is not None:
        if told == d.unmask and isinstance(d.last, Revealed):
            return d, Reveal(d.last)
        return _refused(d, "it is asked to open another sum than before")
    if not d.masked or d.peers is None:
        return _refused(d, "it is asked to open a sum that its upload is not in")
    if sorted((*told.alive, *told.gone)) != sorted(d.partners):
        return _refused(d, "not each neighbour is named once, as one whose upload counts or does not")
    if len(told.alive) < d.peers.threshold:
        return _refused(d, f"the uploads of {len(told.alive)} neighbours count, and {d.peers.threshold} are needed")
    shares = [Opens(name, d.held[name].self_share) for name in told.alive if name in d.held]
    shares += [Opens(name, d.held[name].key_share) for name in told.gone if name in d.held]
    revealed = Revealed(tuple(shares))
    # What is not revealed must not be revealed ever: nothing of it is kept.
    return replace(d, unmask=told, last=revealed, held={}), Reveal(revealed)
