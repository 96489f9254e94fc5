"""How fast a link is, and how large its chunks should be.

A chunk is the unit of repair and of patience: while one crosses a slow link nothing else does, not even a ping.  So a
chunk should take a second at most; a fast link wants large ones, which cost fewer messages and digests.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepfl.wire import CHUNK, CHUNK_SIZES

MOST_SECONDS = 1.0  # of the link's time that a chunk may take
_ENOUGH = 0.2  # seconds to have measured before the measure counts
_MEMORY = 20.0  # seconds measured, after which what is older counts half
_SMOOTH = 8  # blobs over which the time of an answer is smoothed
_TIMES = 3.0  # as long as usual is nothing unusual yet
_GAP = 10.0  # seconds; a longer gap says that the sender was away, and not how slow the link is


@dataclass(frozen=True)
class Pace:
    """Bytes that came, and the seconds in which some were under way."""

    amount: float = 0.0
    seconds: float = 0.0

    def took(self, amount: int, seconds: float) -> Pace:
        """The pace after ``amount`` more bytes, ``seconds`` after those before them, or after they were asked for."""
        fade = 0.5 if self.seconds > _MEMORY else 1.0
        return Pace(self.amount * fade + amount, self.seconds * fade + min(max(seconds, 0.0), _GAP))

    @property
    def rate(self) -> float | None:
        """Bytes per second; None until enough is known."""
        return self.amount / self.seconds if self.seconds >= _ENOUGH else None


@dataclass(frozen=True)
class Answers:
    """How long it takes from asking to the first chunk.

    A blob that is asked for a second time while its sender is only busy costs as much as one that was lost, and makes
    busy senders busier.  So the time is counted from the first time of asking, though the answer may be to a later one:
    that can only err to the side of patience.

    Attributes:
        seconds: smoothed over the last blobs; 0 until one has come.
    """

    seconds: float = 0.0

    def took(self, seconds: float) -> Answers:
        """The state after one more."""
        return Answers(self.seconds + (min(max(seconds, 0.0), _GAP) - self.seconds) / _SMOOTH)

    def patience(self, least: float, most: float) -> float:
        """Seconds to wait for an answer, between these bounds."""
        return min(max(_TIMES * self.seconds, least), most)


def chunk_for(rate: float | None, *, known: int = CHUNK, most: int = CHUNK_SIZES[-1]) -> int:
    """The chunk size for a link.

    Args:
        rate: bytes per second, if it is known.
        known: bytes; the size to use until it is.
        most: bytes of a message's payload, at most.

    Returns:
        The greatest of :data:`~edgepfl.wire.CHUNK_SIZES` that takes a second at most; the least if none does.
    """
    wish = known if rate is None else int(rate * MOST_SECONDS)
    return max((size for size in CHUNK_SIZES if size <= min(wish, most)), default=CHUNK_SIZES[0])
