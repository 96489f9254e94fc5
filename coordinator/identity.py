"""Two agents with one name, found by their Hellos; a pure record: :func:`hear` gives the next one.

A broker lets one client of a name be connected: two agents that have it throw each other out for ever, and each looks
like a device that restarts.  What tells them apart is that each process draws a number of its own (``incarnation``),
and no process comes back after its end.  So whoever is heard again after another was alive all the time, and where two
are heard in turn, there are two::

    A B B B            a restart, or another card: A is never heard again
    A B A              A was alive when B began, or its message was late
    A B A B            both are alive: B, which came second, is refused

A late message looks like its sender's return, but once.  Where both have the same storage (``identity``), as a process
and its successor have, they must take one turn more; other cards do not follow each other so fast.  So a card that was
copied is found as well, only later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from msgspec import UNSET

from coordinator.devices import MOST
from edgepfl.wire import Hello, Refused

WINDOW = 600.0
"""Seconds after which it does not matter any more who was heard."""

_TURNS = 32  # of one name to remember, at most
_ENOUGH = 4  # turns of two agents with different storages
_ENOUGH_SAME = 6  # of two with the same


@dataclass(frozen=True)
class Turn:
    """One process was heard, once or several times without another in between.

    Attributes:
        identity: of its storage.
        incarnation: of the process.
        heard: when, the last time, in seconds of the coordinator's clock.
    """

    identity: int
    incarnation: int
    heard: float


@dataclass(frozen=True)
class Voices:
    """Who said Hello for one device.

    Attributes:
        turns: the latest ones, in their order.
        refused: when one of them was told to end, None for never.
    """

    turns: tuple[Turn, ...] = ()
    refused: float | None = None


Names = Mapping[str, Voices]
"""Of each device, who said Hello for it lately."""


def hear(names: Names, hello: Hello, at: float) -> tuple[Names, Refused | None]:
    """The record after a Hello, and what to answer if its sender must end.

    Args:
        names: the record before.
        hello: one without an incarnation, of an older agent or a hub, changes nothing.
        at: when it was heard, in seconds of the coordinator's clock.
    """
    if hello.identity is UNSET or hello.incarnation is UNSET:
        return names, None
    if hello.device not in names and len(names) >= MOST:
        names = {name: each for name, each in names.items() if at - each.turns[-1].heard < WINDOW}
        if len(names) >= MOST:
            return names, None
    turn = Turn(hello.identity, hello.incarnation, at)
    voices = _after(names.get(hello.device, Voices()), turn)
    rival = _rival(voices.turns)
    if rival is None:
        return {**names, hello.device: voices}, None
    answer = Refused(hello.device, turn.identity, turn.incarnation, _why(turn, rival))
    return {**names, hello.device: replace(voices, refused=at)}, answer


def doubled(names: Names, at: float) -> dict[str, str]:
    """The devices of which an agent was refused lately, and what that means."""
    return {
        name: "two agents have this name, and one was told to end: see their logs"
        for name, voices in sorted(names.items())
        if voices.refused is not None and at - voices.refused < WINDOW
    }


def _after(voices: Voices, turn: Turn) -> Voices:
    turns = tuple(each for each in voices.turns if turn.heard - each.heard < WINDOW)
    if turns and turns[-1].incarnation == turn.incarnation:
        turns = turns[:-1]
    return replace(voices, turns=(*turns, turn)[-_TURNS:])


def _rival(turns: tuple[Turn, ...]) -> Turn | None:
    """A process that was here before the one of the last turn, and is here still."""
    last = turns[-1]
    for other in {turn.incarnation: turn for turn in turns}.values():  # in the order in which each was first heard
        if other.incarnation == last.incarnation:
            return None
        theirs = [turn for turn in turns if turn.incarnation in (other.incarnation, last.incarnation)]
        changes = 1 + sum(one.incarnation != two.incarnation for one, two in pairwise(theirs))
        if changes >= (_ENOUGH_SAME if other.identity == last.identity else _ENOUGH):
            return other
    return None


def _why(turn: Turn, rival: Turn) -> str:
    whose = "of one storage, as when a card is copied" if turn.identity == rival.identity else "of two storages"
    return f"two agents have this name ({whose}); the other one was here first and stays"
