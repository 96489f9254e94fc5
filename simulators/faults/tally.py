"""What a fault proxy did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """Counts since the start of the proxy, so that a test can see that its faults really happened.

    Attributes:
        connections: that clients opened.
        refused: of those, because the broker was not there.
        cuts: connections that were cut.
        silences: connections that fell silent and were not closed.
        packets: that were passed on.
        bytes: of those.
        delayed: packets that waited for their time.
        dropped: PUBLISH packets of QoS 0 that were lost.
        duplicated: PUBLISH packets that were sent twice.
        reordered: PUBLISH packets that were held back.
        corrupted: PUBLISH packets with another payload.
        garbled: packets with another bit somewhere.
        swallowed: packets that vanished in a half-open connection.
    """

    connections: int = 0
    refused: int = 0
    cuts: int = 0
    silences: int = 0
    packets: int = 0
    bytes: int = 0
    delayed: int = 0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0
    garbled: int = 0
    swallowed: int = 0
