"""What devices and coordinator say to each other: the bodies of :class:`edgepfl.wire.SecAgg`.

::

    device                          coordinator
    Keys          ------------->    once the task is there
                  <-------------    Peers: its neighbours' keys
    Dealt         ------------->    shares of its two secrets, sealed for each neighbour
                  <-------------    Deliver: its neighbours' shares for it
    (the masked upload goes with the report)
                  <-------------    Unmask: whose uploads are in the sum, and whose are not
    Revealed      ------------->    of each neighbour, a share of one of its two secrets

    Ask           <-------------    say again what you said last

Every message may come twice.  Names and lengths are checked here, all else by the machines.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from edgepfl.errors import WireError
from edgepfl.secagg.graph import MOST_NEIGHBOURS

T = TypeVar("T")
Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Share: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Sealed: TypeAlias = Annotated[bytes, Meta(min_length=80, max_length=80)]  # two shares and a tag
Who: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?\Z")]
_Many = Meta(max_length=MOST_NEIGHBOURS)


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A step of the protocol."""


class Keys(Body, frozen=True):
    """A device's public keys of this attempt, made for it.

    Attributes:
        mask: from which it and each neighbour have a mask that cancels.
        seal: with which shares are sealed.
    """

    mask: Key
    seal: Key


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A neighbour and its keys."""

    device: Who
    keys: Keys


class Peers(Body, frozen=True):
    """A device's neighbours, in the order of their names, and how many shares open a secret."""

    peers: Annotated[tuple[Peer, ...], _Many]
    threshold: Annotated[int, Meta(ge=1, le=MOST_NEIGHBOURS)]


class For(msgspec.Struct, frozen=True, array_like=True):
    """What is sealed for a neighbour, or came from it."""

    device: Who
    sealed: Sealed


class Dealt(Body, frozen=True):
    """A device's shares, one sealed part for each neighbour."""

    parts: Annotated[tuple[For, ...], _Many]


class Deliver(Body, frozen=True):
    """What a device's neighbours sealed for it.  With these it has masks in common, and with no others."""

    parts: Annotated[tuple[For, ...], _Many]


class Unmask(Body, frozen=True):
    """Of a device's neighbours, those whose uploads are in the sum, and those whose are not."""

    alive: Annotated[tuple[Who, ...], _Many]
    gone: Annotated[tuple[Who, ...], _Many]


class Opens(msgspec.Struct, frozen=True, array_like=True):
    """A share of one secret of a neighbour: of its self-mask where its upload is in the sum, else of its mask key."""

    device: Who
    share: Share


class Revealed(Body, frozen=True):
    """A share of each neighbour's secret that is to be opened."""

    shares: Annotated[tuple[Opens, ...], _Many]


class Ask(Body, frozen=True):
    """Say again what you said last."""


Said: TypeAlias = Keys | Dealt | Revealed
"""What a device says."""
Told: TypeAlias = Peers | Deliver | Unmask | Ask
"""What it is told."""

_SAID, _TOLD = msgspec.msgpack.Decoder(Said), msgspec.msgpack.Decoder(Told)
_ENCODER = msgspec.msgpack.Encoder()


def encode(body: Body) -> bytes:
    """The bytes of a body."""
    return _ENCODER.encode(body)


def said(data: bytes, *, where: str) -> Said:
    """What a device says.

    Raises:
        WireError: nothing that a device may say.
    """
    return _decoded(_SAID, data, where)


def told(data: bytes, *, where: str) -> Told:
    """What a device is told.

    Raises:
        WireError: nothing that it may be told.
    """
    return _decoded(_TOLD, data, where)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, where: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise WireError(f"no step of secure aggregation ({error})", where=where, reason="secagg") from error
