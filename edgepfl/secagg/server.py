"""The coordinator's side of one attempt, as a pure machine.

``advance(state, event) -> (state, effects)``: no clock, no socket, no randomness.  The state goes into the journal at
the end of each stage, so a coordinator that restarts asks again for what is missing of the stage it is in, and asks for
the same sums only.

Theory of operation::

    KEYS ---every member that works has told its keys---> SHARES ---likewise its shares---> MASKED
                                                                                              |
                       OPENED <---enough shares--- UNMASKING <---the round has its reports----+

A member that is lost, fails or says that it lost its keys is left out of the next stage, and told so.  Who is left out
after its shares were dealt is a dropout, whose masks the others help to take off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec
import numpy as np

from edgepfl.secagg import graph
from edgepfl.secagg.answers import shares_of, wanted
from edgepfl.secagg.messages import Ask, Dealt, Deliver, For, Keys, Peer, Peers, Revealed, Said, Told, Unmask


class Stage(StrEnum):
    """How far the exchange is."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    UNMASKING = "unmasking"
    OPENED = "opened"


class Server(msgspec.Struct, frozen=True):
    """An attempt's exchange.

    Attributes:
        number: of the round.
        attempt: at the round.
        seed: puts the ring of devices in order.
        least: devices whose uploads a sum must have.
        degree: neighbours that a person asks for; 0 for as many as the graph needs.
        stage: how far it is.
        keys: of the members, by name; from SHARES on, of those that are in.
        graph: the neighbours of each.
        threshold: shares that open a secret.
        shares: what each member sealed, by its name and the receiver's.
        dealt: the members whose shares were exchanged.
        survivors: whose uploads are in the sum.
        revealed: what each of them revealed.
    """

    number: int
    attempt: int
    seed: int
    least: int
    degree: int = 0
    stage: Stage = Stage.KEYS
    keys: dict[str, Keys] = {}
    graph: dict[str, tuple[str, ...]] = {}
    threshold: int = 0
    shares: dict[str, dict[str, bytes]] = {}
    dealt: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    revealed: dict[str, Revealed] = {}

    @property
    def silent(self) -> tuple[str, ...]:
        """Of whom something is due in this stage, as far as this state knows who is in it."""
        match self.stage:
            case Stage.SHARES:
                return tuple(sorted(self.keys.keys() - self.shares.keys()))
            case Stage.UNMASKING:
                return tuple(sorted(set(self.survivors) - self.revealed.keys()))
            case _:
                return ()


# Events.


@dataclass(frozen=True)
class Heard:
    """A member said something."""

    device: str
    body: Said


@dataclass(frozen=True)
class Seats:
    """Who is in the round.

    Attributes:
        working: the members that may still report, without those that are lost.
        waiting: whether others will get the task later.
    """

    working: frozenset[str]
    waiting: bool = False


@dataclass(frozen=True)
class Close:
    """These members' uploads are in the sum, and no others ever."""

    survivors: tuple[str, ...]


Event: TypeAlias = Heard | Seats | Close

# Effects.


@dataclass(frozen=True)
class Tell:
    """Tell a member what it is due, see :func:`due`."""

    devices: tuple[str, ...]


@dataclass(frozen=True)
class LeaveOut:
    """These members cannot take part any more."""

    devices: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class GiveUp:
    """The sum can never be opened."""

    why: str


@dataclass(frozen=True)
class Opened:
    """All is here that takes the masks off."""


Effect: TypeAlias = Tell | LeaveOut | GiveUp | Opened
Step: TypeAlias = tuple[Server, tuple[Effect, ...]]


def advance(s: Server, event: Event) -> Step:
    """The next state and what to do about it.  Never raises on a late or repeated event."""
    match event:
        case Heard(device, body):
            return _heard(s, device, body)
        case Seats(working, waiting):
            return _seats(s, working, waiting)
        case Close(survivors):
            return _close(s, survivors)


def due(s: Server, device: str) -> Told | None:
    """What a member must know by now, or is asked for; None where it has nothing to do."""
    match s.stage:
        case Stage.KEYS:
            return Ask() if device not in s.keys else None
        case Stage.SHARES if device in s.keys:
            peers = tuple(Peer(name, s.keys[name]) for name in s.graph[device])
            return Peers(peers, s.threshold)
        case Stage.MASKED if device in s.dealt:
            return Deliver(tuple(For(name, s.shares[name][device]) for name in _partners(s, device)))
        case Stage.UNMASKING if device in s.survivors:
            partners, alive = _partners(s, device), set(s.survivors)
            counted = tuple(name for name in partners if name in alive)
            return Unmask(counted, tuple(name for name in partners if name not in alive))
        case _:
            return None


def _partners(s: Server, device: str) -> list[str]:
    """The neighbours that a member shares masks with."""
    dealt = set(s.dealt)
    return [name for name in s.graph[device] if name in dealt]


def _heard(s: Server, device: str, body: Said) -> Step:
    match body:
        case Keys() if s.stage is Stage.KEYS:
            return msgspec.structs.replace(s, keys={**s.keys, device: body}), ()
        case Keys() if s.stage is not Stage.OPENED and s.keys.get(device) != body:
            late = device not in s.keys
            why = "its keys came after the others' were fixed" if late else "it lost its keys: it was started anew"
            return s, (LeaveOut((device,), why),) if s.stage in {Stage.SHARES, Stage.MASKED} else ()
        case Keys():  # again, so it does not know what came of them
            return s, (Tell((device,)),)
        case Dealt() if s.stage is Stage.SHARES and device in s.keys and device not in s.shares:
            return _took_shares(s, device, body)
        case Dealt() if s.stage is Stage.MASKED:
            return s, (Tell((device,)),) if device in s.dealt else ()
        case Revealed() if s.stage is Stage.UNMASKING and device in s.survivors and device not in s.revealed:
            return _opened(msgspec.structs.replace(s, revealed={**s.revealed, device: body}))
        case _:
            return s, ()


def _took_shares(s: Server, device: str, dealt: Dealt) -> Step:
    parts = {part.device: part.sealed for part in dealt.parts}
    if tuple(part.device for part in dealt.parts) != s.graph[device]:
        return s, (LeaveOut((device,), "its shares are not those of its neighbours"),)
    return msgspec.structs.replace(s, shares={**s.shares, device: parts}), ()


def _seats(s: Server, working: frozenset[str], waiting: bool) -> Step:  # noqa: FBT001  as the event says
    """Go on to the next stage if nobody is waited for."""
    strangers = working - s.keys.keys() if s.stage is Stage.SHARES else working - set(s.dealt)
    match s.stage:
        case Stage.SHARES | Stage.MASKED if strangers:  # they were taken for lost
            return s, (LeaveOut(tuple(sorted(strangers)), "the exchange of keys went on without it"),)
        case Stage.KEYS if not waiting and working and working <= s.keys.keys():
            return _fix_keys(s, working)
        case Stage.SHARES if working & s.keys.keys() <= s.shares.keys():
            return _fix_shares(s, working & s.keys.keys())
        case _:
            return s, ()


def _fix_keys(s: Server, working: frozenset[str]) -> Step:
    count = len(working)
    if count < s.least:
        return s, (LeaveOut(tuple(sorted(working)), _few(s, count, "have told their keys")),)
    k = graph.degree(count, s.degree)
    state = msgspec.structs.replace(
        s,
        stage=Stage.SHARES,
        keys={name: s.keys[name] for name in sorted(working)},
        graph=graph.neighbours(sorted(working), k, np.random.default_rng(s.seed)),
        threshold=graph.threshold(count, k),
    )
    return state, (Tell(tuple(state.keys)),)


def _fix_shares(s: Server, working: Collection[str]) -> Step:
    dealt = tuple(sorted(working))
    state = msgspec.structs.replace(s, stage=Stage.MASKED, dealt=dealt)
    if why := _unsafe(state, dealt):
        return s, (LeaveOut(dealt, why),) if dealt else ()
    return state, (Tell(dealt),)


def _close(s: Server, survivors: tuple[str, ...]) -> Step:
    if s.stage in {Stage.UNMASKING, Stage.OPENED}:
        again: Effect = Opened() if s.stage is Stage.OPENED else Tell(s.silent)
        return s, (again if survivors == s.survivors else GiveUp("another set of uploads was to be opened before"),)
    if s.stage is not Stage.MASKED or not set(survivors) <= set(s.dealt):
        return s, (GiveUp("there are reports of devices that took no part in the exchange of shares"),)
    if why := _unsafe(s, survivors):
        return s, (GiveUp(why),)
    state = msgspec.structs.replace(s, stage=Stage.UNMASKING, survivors=tuple(sorted(survivors)))
    return state, (Tell(state.survivors),)


def _opened(s: Server) -> Step:
    """Whether enough was revealed of every secret."""
    for device in wanted(s.graph, s.dealt, s.survivors):
        if len(shares_of(s.graph, device, s.revealed)) < s.threshold:
            return s, ()
    return msgspec.structs.replace(s, stage=Stage.OPENED), (Opened(),)


def _unsafe(s: Server, left: Collection[str]) -> str:
    """Why a sum over those who are left could not be opened, or would say too much."""
    if len(left) < s.least or 3 * len(left) < 2 * len(s.keys):
        return _few(s, len(left), f"of {len(s.keys)} are left")
    alive = set(left)
    for device in wanted(s.graph, s.dealt, sorted(alive)):
        near = len(alive.intersection(s.graph[device]))
        if near < s.threshold:
            return f"{near} neighbours of {device} are left, and {s.threshold} are needed"
    return ""


def _few(s: Server, count: int, what: str) -> str:
    needed = max(s.least, -(-2 * len(s.keys) // 3))
    return f"secure aggregation: {count} devices {what}, at least {needed} are needed"


def progress(s: Server, working: Mapping[str, object] | Collection[str]) -> str:
    """How far it is, in words; empty where nothing is waited for."""
    match s.stage:
        case Stage.KEYS:
            return f"keys of {len(s.keys.keys() & set(working))} of {len(working)} devices"
        case Stage.SHARES:
            return f"shares of {len(s.shares)} of {len(s.keys)} devices"
        case Stage.UNMASKING:
            return f"the masks come off: {len(s.revealed)} of {len(s.survivors)} devices have answered"
        case _:
            return ""
