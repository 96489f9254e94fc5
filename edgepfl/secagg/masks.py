"""The seeds of masks, and the sealing of shares: what two devices, or the coordinator in a device's place, compute."""

from __future__ import annotations

from dataclasses import dataclass

from edgepfl.secagg.fixed import Words
from edgepfl.secagg.messages import Keys
from edgepfl.secagg.primitives import SECRET, KeyPair, add_stream, expand, seal, unseal


def context(run: str, number: int, attempt: int) -> bytes:
    """What no key is derived without: an attempt at a round of a run."""
    return f"{run}\n{number}\n{attempt}".encode()


@dataclass(frozen=True)
class Mask:
    """A stream that is in a masked vector.

    Attributes:
        key: of the stream; whoever knows it can take the mask off.
        sign: 1 where the stream was added, -1 where it was subtracted.
    """

    key: bytes
    sign: int

    def __repr__(self) -> str:
        return f"Mask(sign={self.sign})"

    def put_on(self, vector: Words) -> None:
        """Add it to a vector, in place."""
        add_stream(vector, self.key, self.sign)

    def take_off(self, vector: Words) -> None:
        """Undo :meth:`put_on`."""
        add_stream(vector, self.key, -self.sign)


def pairwise(own: KeyPair, device: str, peer: str, other: bytes, about: bytes) -> Mask:
    """The mask that a device has in common with a neighbour, and which cancels in the sum of the two.

    Args:
        own: the device's mask key.
        device: its name.
        peer: the neighbour's.
        other: the neighbour's public mask key.
        about: the attempt, see :func:`context`.

    Raises:
        CodecError: the other key is none.
    """
    first, second = sorted((device, peer))
    secret = own.agree(other)
    key = expand(secret, b"mask", about, first.encode(), second.encode(), *sorted((own.public, other)))
    return Mask(key, 1 if device == first else -1)


def selfish(secret: bytes, device: str, about: bytes) -> Mask:
    """The mask of a device's own, from the secret of which its neighbours have shares."""
    return Mask(expand(secret, b"self", about, device.encode()), 1)


@dataclass(frozen=True)
class Channel:
    """What one device seals for another in an attempt.

    Attributes:
        key: for one message.
        about: what it is about, authenticated with it.
    """

    key: bytes
    about: bytes

    def __repr__(self) -> str:
        return "Channel()"

    @classmethod
    def between(cls, own: KeyPair, sender: str, receiver: str, other: Keys, about: bytes) -> Channel:
        """From one to the other; ``own`` is the seal key of either of them, and ``other`` the other one's.

        Raises:
            CodecError: the other key is none.
        """
        names = (sender.encode(), receiver.encode())
        key = expand(own.agree(other.seal), b"seal", about, *names, *sorted((own.public, other.seal)))
        return cls(key, b"\n".join((about, *names)))

    def seal(self, self_share: bytes, key_share: bytes) -> bytes:
        """Both shares for the receiver."""
        return seal(self.key, self_share + key_share, self.about)

    def unseal(self, sealed: bytes) -> tuple[bytes, bytes]:
        """Both shares.

        Raises:
            CodecError: they are not from the sender, or not for this.
        """
        both = unseal(self.key, sealed, self.about)
        return both[:SECRET], both[SECRET:]
