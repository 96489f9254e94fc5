"""Acknowledgements in the order in which their receiver sent what they acknowledge.

MQTT wants PUBACKs in the order of the PUBLISH packets (section 4.6 of version 5), and some brokers end a connection
that does otherwise.  A proxy that reorders or repeats PUBLISH packets would break that: so it holds each PUBACK back
until those before it are there, and lets the second one of a repeated packet vanish.
"""

from __future__ import annotations

from collections import deque

from simulators.faults.packets import Packet, acknowledged


class Acknowledgements:
    """What one side sent and the other has not acknowledged yet.  It is mutable."""

    def __init__(self) -> None:
        self._sent: deque[int] = deque()
        self._here: dict[int, Packet] = {}
        self._loose = False

    def expect(self, number: int) -> None:
        """A PUBLISH of QoS 1 with this identifier was sent."""
        self._sent.append(number)

    def loosen(self) -> None:
        """A packet lost its shape: what is acknowledged from now on is anybody's guess, so let everything through."""
        self._loose = True

    def take(self, packet: Packet) -> list[Packet]:
        """The PUBACKs that may go on, now that this one came."""
        if self._loose:
            return [packet]
        number = acknowledged(packet)
        if number not in self._sent or number in self._here:
            return []
        self._here[number] = packet
        ready = []
        while self._sent and self._sent[0] in self._here:
            ready.append(self._here.pop(self._sent.popleft()))
        return ready
