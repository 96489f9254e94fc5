"""Which faults, how often and how bad.  All values are seconds, bytes a second, or probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from edgepfl.errors import ConfigError

Span = tuple[float, float]
"""The least and the greatest of seconds; each draw is uniform in between."""
NEVER: Span = (math.inf, math.inf)


def _check_span(name: str, span: Span) -> None:
    low, high = span
    if math.isnan(low) or math.isnan(high) or not 0 <= low <= high:
        raise ConfigError(
            f"{low:g} to {high:g} is no span of time", where=name, remedy="Give seconds, the lesser number first"
        )


@dataclass(frozen=True)
class Way:
    """The faults of one direction.

    Delays keep the order of packets, as TCP does; what is reordered stays legal MQTT, because the acknowledgements
    are put back into the order that their receiver expects.

    Attributes:
        delay: of every packet; two different bounds are jitter.
        rate: bytes a second; 0 for no limit.
        drop: probability that a PUBLISH of QoS 0 is lost.
        duplicate: that a PUBLISH comes twice.
        reorder: that a PUBLISH is held back while others go on.
        held: for how long.
        corrupt: that one bit of a PUBLISH's payload is flipped.
        garble: that one bit of any packet is flipped, be it the header: the receiver ends such a connection, or waits
            for the rest of a packet that never comes.
        swallow: everything vanishes, and the connection stays: half-open.
    """

    delay: Span = (0.0, 0.0)
    rate: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    held: Span = (0.02, 0.2)
    corrupt: float = 0.0
    garble: float = 0.0
    swallow: bool = False

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt", "garble"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{getattr(self, name)} is no probability", where=name, remedy="Give 0 to 1")
        _check_span("delay", self.delay)
        _check_span("held", self.held)
        if not 0 <= self.rate < math.inf:
            raise ConfigError(f"{self.rate} is no rate", where="rate", remedy="Give bytes a second, or 0 for no limit")


@dataclass(frozen=True)
class Faults:
    """The faults of a network.

    Attributes:
        up: from the clients to the broker.
        down: from the broker to the clients.
        cut: after how long a connection is cut, each anew.
        silence: after how long a connection falls silent in one direction, or in both, and is not closed.
    """

    up: Way = Way()
    down: Way = Way()
    cut: Span = NEVER
    silence: Span = NEVER

    def __post_init__(self) -> None:
        _check_span("cut", self.cut)
        _check_span("silence", self.silence)


CALM = Faults()
"""A network without faults."""


def both(way: Way, *, cut: Span = NEVER, silence: Span = NEVER) -> Faults:
    """The same faults in both directions."""
    return Faults(way, way, cut, silence)


def described(faults: Faults) -> str:
    """What differs from a network without faults, for people."""
    parts = []
    for name in ("up", "down"):
        way = getattr(faults, name)
        changed = [f.name for f in fields(way) if getattr(way, f.name) != f.default]
        parts += [f"{name}.{each}={getattr(way, each)}" for each in changed]
    parts += [f"{name}={getattr(faults, name)}" for name in ("cut", "silence") if getattr(faults, name) != NEVER]
    return ", ".join(parts) or "no faults"
