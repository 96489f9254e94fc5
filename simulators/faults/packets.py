"""The framing of MQTT 3.1.1 and 5: whole packets out of a stream of bytes, and what a proxy must know of them.

Section numbers are those of the OASIS standard, MQTT Version 5.0.
"""

from __future__ import annotations

from dataclasses import dataclass

CONNECT, PUBLISH, PUBACK = 1, 3, 4
_V5 = 5
_MOST_LENGTH_BYTES = 4


class Misframed(Exception):
    """These bytes are no MQTT: a remaining length of more than four bytes (section 1.5.5)."""


@dataclass(frozen=True)
class Packet:
    """One control packet.

    Attributes:
        data: all of its bytes.
        body: where its variable header begins in them.
    """

    data: bytes
    body: int

    @property
    def kind(self) -> int:
        """Its type: section 2.1.2."""
        return self.data[0] >> 4

    @property
    def qos(self) -> int:
        """Of a PUBLISH."""
        return self.data[0] >> 1 & 3


@dataclass(frozen=True)
class Published:
    """Where the parts of a PUBLISH are (section 3.3).

    Attributes:
        number: its packet identifier; 0 for QoS 0, which has none.
        payload: where the payload begins in the packet's bytes.
    """

    number: int
    payload: int


class Framer:
    """Cuts a stream into packets.  It is mutable: bytes that are no whole packet wait for the rest."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are whole with these bytes.

        Raises:
            Misframed: the stream is no MQTT.
        """
        self._rest += data
        found, at = [], 0
        while (end := _end(self._rest, at)) is not None:
            body, stop = end
            found.append(Packet(bytes(self._rest[at:stop]), body - at))
            at = stop
        del self._rest[:at]
        return found


def published(packet: Packet, *, version: int) -> Published | None:
    """The parts of a PUBLISH; None where its own lengths contradict it.

    Args:
        packet: a PUBLISH.
        version: of the protocol: 5 has properties.
    """
    data, at = packet.data, packet.body
    if len(data) < at + 2:
        return None
    at += 2 + int.from_bytes(data[at : at + 2])
    number = 0
    if packet.qos:
        number = int.from_bytes(data[at : at + 2])
        at += 2
    if version >= _V5:
        properties = _variable(data, at)
        if properties is None:
            return None
        length, at = properties
        at += length
    return Published(number, at) if at <= len(data) else None


def acknowledged(packet: Packet) -> int:
    """The packet identifier of a PUBACK (section 3.4.2)."""
    return int.from_bytes(packet.data[packet.body : packet.body + 2])


def introduced(packet: Packet) -> tuple[int, str]:
    """Version and client identifier of a CONNECT (section 3.1); (5, "") where it says neither."""
    data, at = packet.data, packet.body
    at += 2 + int.from_bytes(data[at : at + 2])  # the protocol's name
    if len(data) < at + 4:
        return _V5, ""
    version = data[at]
    at += 4  # version, flags, keep alive
    if version >= _V5 and (properties := _variable(data, at)) is not None:
        length, at = properties
        at += length
    length = int.from_bytes(data[at : at + 2])
    return version, data[at + 2 : at + 2 + length].decode("utf-8", "replace")


def repeated(packet: Packet) -> bytes:
    """The bytes of a PUBLISH sent again: with its DUP flag, but for QoS 0 (section 3.3.1.1)."""
    return bytes((packet.data[0] | (8 if packet.qos else 0),)) + packet.data[1:]


def flipped(data: bytes, bit: int) -> bytes:
    """The same bytes with one bit the other way round."""
    at = bit // 8
    return data[:at] + bytes((data[at] ^ 1 << bit % 8,)) + data[at + 1 :]


def _end(data: bytearray, at: int) -> tuple[int, int] | None:
    """Where the variable header of the packet at ``at`` begins, and where the packet ends; None: not all here."""
    found = _variable(data, at + 1)
    if found is None:
        if len(data) > at + _MOST_LENGTH_BYTES:
            raise Misframed
        return None
    length, body = found
    return (body, body + length) if len(data) >= body + length else None


def _variable(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    """A variable byte integer (section 1.5.5), and where what follows it begins."""
    value = 0
    for place in range(_MOST_LENGTH_BYTES):
        if at + place >= len(data):
            return None
        byte = data[at + place]
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, at + place + 1
    return None
