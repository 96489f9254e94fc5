"""What happens to each packet, drawn from seeds by name: the n-th packet of a connection meets the same fate again.

Every kind of fault has a stream of draws of its own, and each packet takes the same number of draws whatever the
faults are: so changing one fault, or all of them halfway, does not change what the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from simulators.faults.settings import Faults, Span, Way


@dataclass(frozen=True)
class Fate:
    """What happens to a packet.

    Attributes:
        delay: seconds until it goes on, in its place.
        garble: where to flip a bit of it, from 0 to 1 of its length; None: nowhere.
    """

    delay: float = 0.0
    garble: float | None = None


@dataclass(frozen=True)
class PublishFate:
    """What happens to a PUBLISH beside that.

    Attributes:
        dropped: it is lost, if its QoS is 0.
        duplicated: it comes twice.
        held: seconds for which it is held back while others go on; 0: it is not.
        corrupt: where to flip a bit of its payload, from 0 to 1 of its length; None: nowhere.
    """

    dropped: bool = False
    duplicated: bool = False
    held: float = 0.0
    corrupt: float | None = None


class Fates:
    """The fates of one direction of one connection.

    Args:
        name: of the connection and direction, with the seed in it.
    """

    def __init__(self, name: str) -> None:
        self._any = Random(f"{name}/any")
        self._publish = Random(f"{name}/publish")

    def next(self, way: Way) -> Fate:
        """The fate of the next packet, whatever it is."""
        delay, hit, where = (self._any.random() for _ in range(3))
        return Fate(within(way.delay, delay), where if hit < way.garble else None)

    def next_publish(self, way: Way) -> PublishFate:
        """What happens to the next PUBLISH beside that."""
        drop, duplicate, reorder, held, corrupt, where = (self._publish.random() for _ in range(6))
        return PublishFate(
            dropped=drop < way.drop,
            duplicated=duplicate < way.duplicate,
            held=within(way.held, held) if reorder < way.reorder else 0.0,
            corrupt=where if corrupt < way.corrupt else None,
        )


@dataclass(frozen=True)
class End:
    """How long a connection lives.

    Attributes:
        cut: seconds until it is cut.
        silence: seconds until it falls silent.
        mute: which directions fall silent: "up", "down" or both.
    """

    cut: float
    silence: float
    mute: tuple[str, ...]


def end_of(name: str, faults: Faults) -> End:
    """The end of the connection of this name."""
    source = Random(f"{name}/end")
    cut, silence = source.random(), source.random()
    mute = source.choice((("up",), ("down",), ("up", "down")))
    return End(within(faults.cut, cut), within(faults.silence, silence), mute)


def within(span: Span, draw: float) -> float:
    """A draw from 0 to 1 as a place in a span; an endless span has no place but its end."""
    low, high = span
    return low if low == high else low + (high - low) * draw
