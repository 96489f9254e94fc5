"""What a transport does for a service, and what it does not promise.

A bus carries small messages between named topics, at least once while connected (``qos=1``) or at most once
(``qos=0``).  It promises nothing across a lost connection: no message, no subscription of the broker's memory.
Whoever needs more repeats itself after :class:`Connected`; our messages are idempotent for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias


@dataclass(frozen=True)
class Connected:
    """The bus is (again) connected, and every filter is subscribed."""


@dataclass(frozen=True)
class Disconnected:
    """The connection is lost; the bus goes on trying."""

    reason: str


@dataclass(frozen=True)
class Arrived:
    """A message came in."""

    topic: str
    payload: bytes


Event: TypeAlias = Connected | Disconnected | Arrived


@dataclass(frozen=True)
class Traffic:
    """What crossed the socket since the start, in bytes of the transport's own packets, and in messages."""

    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.messages_in + other.messages_in,
            self.messages_out + other.messages_out,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.bytes_in - other.bytes_in,
            self.bytes_out - other.bytes_out,
            self.messages_in - other.messages_in,
            self.messages_out - other.messages_out,
        )


@dataclass(frozen=True)
class Will:
    """What the broker publishes for a client that vanishes."""

    topic: str
    payload: bytes


class Bus(Protocol):
    """A connection to all topics.  Used from one event loop only; nothing here blocks it."""

    @property
    def traffic(self) -> Traffic:
        """What crossed the socket since the start."""
        ...

    @property
    def backlog(self) -> int:
        """Bytes of what was published and is not sent yet (``qos=0``) or not acknowledged (``qos=1``)."""
        ...

    @property
    def largest(self) -> int:
        """Bytes of the longest payload that the broker takes, as far as it is known."""
        ...

    async def start(self) -> None:
        """Begin to connect, and go on connecting for ever; Connected tells of success.

        Raises:
            BusError: the settings can never work (bad URL, bad certificate, refused credentials).
        """
        ...

    async def stop(self) -> None:
        """Send what is queued (at most two seconds), say goodbye and close."""
        ...

    def subscribe(self, topic_filter: str) -> None:
        """Receive what is published under this filter, now and after every reconnection."""
        ...

    def unsubscribe(self, topic_filter: str) -> None:
        """Receive it no longer."""
        ...

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """Send, or say False: not connected, or so much is queued that the caller must wait."""
        ...

    async def receive(self) -> Event:
        """The next event."""
        ...
