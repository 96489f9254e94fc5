"""What may be heard of an agent at work, without asking it anything: for emulators and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from device_agent.session import Effect, Event
from edgepfl.bus import Disconnected

Listener: TypeAlias = Callable[[Event | Disconnected, tuple[Effect, ...]], None]
"""Told of each event that the session machine was fed, with the effects that came of it, before they are carried out;
and of the loss of the connection, of which nothing comes.  It must not raise, and must return at once."""


def nobody(_: Event | Disconnected, __: tuple[Effect, ...]) -> None:
    """The listener where nobody listens."""
