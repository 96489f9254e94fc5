"""The records of a round: where it stands, and what each member of its cohort is doing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Phase(StrEnum):
    """Where a round stands."""

    SELECTING = "selecting"
    REPORTING = "reporting"
    REDUCING = "reducing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    HALTED = "halted"
    STOPPED = "stopped"


GOING_ON = frozenset({Phase.SELECTING, Phase.REPORTING, Phase.REDUCING})
"""Those in which a round is not over."""


class State(StrEnum):
    """What a member of the cohort is doing."""

    WAITING = "waiting"  # it gets the task once the canaries have shown that it works
    WORKING = "working"
    REPORTED = "reported"
    LOST = "lost"  # its lease ran out twice
    FAILED = "failed"  # it said so, or its upload was refused
    RELEASED = "released"  # the round ended without it, and it did nothing wrong


OPEN = frozenset({State.WORKING, State.LOST})
"""Those from whom a report still counts: a slow device only looks dead."""


def selected(goal: int, over: float) -> int:
    """How many devices to select so that ``goal`` of them report.

    Args:
        goal: reports.
        over: how many times as many devices, at least 1.
    """
    return math.ceil(goal * over - 1e-9)  # 30 * 1.1 is a little above 33


@dataclass(frozen=True)
class Policy:
    """What a round waits for.

    Attributes:
        goal: reports that end the round.
        minimum: reports below which the round is abandoned.
        gather: seconds to wait for all devices that are wanted once ``minimum`` are here.
        deadline: seconds from selection until the round ends with the reports it has.
        lease: seconds without a sign of life after which a member is sent the task again, then given up.
        over: how many times ``goal`` devices are selected, at least 1.
        halt: the part of those who have the task above which faults of the bundle end the run; 1 for never.
        buffer: reports that make an update while ``goal`` devices are at work all the time, see
            :mod:`coordinator.buffered`; 0 for rounds in which everyone starts from the same state.
        max_staleness: updates after which the work of a device that still has not reported is not waited for.
    """

    goal: int
    minimum: int
    gather: float = 10.0
    deadline: float = 3600.0
    lease: float = 60.0
    over: float = 1.0
    halt: float = 1.0
    buffer: int = 0
    max_staleness: int = 0

    @property
    def selected(self) -> int:
        """How many devices to select."""
        return selected(self.goal, self.over)


@dataclass(frozen=True)
class Seat:
    """A member of the cohort.

    Attributes:
        state: what it is doing.
        until: of WORKING, when its lease ends, in seconds of the coordinator's clock.
        nudged: whether the task was sent again since its last sign of life.
        why: of LOST, FAILED and RELEASED, for people.
        steps: that it has taken, as far as it said.
        code: of FAILED, what kind of error it was.
        task: round and attempt of the task, where it is one of an earlier round; None for this one's.
    """

    state: State
    until: float
    nudged: bool = False
    why: str = ""
    steps: int = 0
    code: str = ""
    task: tuple[int, int] | None = None


@dataclass(frozen=True)
class Round:
    """One attempt at one round.

    Attributes:
        number: 1 for the first round.
        attempt: 0 for the first attempt.
        policy: what it waits for.
        phase: where it stands.
        since: when the phase began, or the last members got the task, in seconds of the coordinator's clock.
        present: the devices that could be selected, while SELECTING.
        enough: since when at least ``minimum`` devices are here, None for not now.
        seats: the cohort, by device.
        joined: the devices that the run did not know before this attempt, chosen or not.
        why: of ABANDONED and HALTED, for people.
        barred: the devices that are to sit this attempt out if it can do without them, and why.
        bases: of a buffered round, the digest of the download that each round in use handed out.
    """

    number: int
    attempt: int
    policy: Policy
    phase: Phase = Phase.SELECTING
    since: float = 0.0
    present: frozenset[str] = frozenset()
    enough: float | None = None
    seats: Mapping[str, Seat] = field(default_factory=dict)
    why: str = ""
    joined: tuple[str, ...] = ()
    barred: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[int, str] = field(default_factory=dict)

    def devices(self, *states: State) -> tuple[str, ...]:
        """The members in one of these states, in the order of their names."""
        return tuple(sorted(device for device, seat in self.seats.items() if seat.state in states))

    def task_of(self, device: str) -> tuple[int, int] | None:
        """Round and attempt of the task that a member has; None for whoever is none."""
        seat = self.seats.get(device)
        return None if seat is None else seat.task or (self.number, self.attempt)

    def awaits(self, device: str) -> bool:
        """Whether the device is a member that may still report.

        In a buffered round it may at any time: what comes while an update is made is in the next one.
        """
        seat = self.seats.get(device)
        phases = GOING_ON if self.policy.buffer else {Phase.REPORTING}
        return self.phase in phases and seat is not None and seat.state in OPEN

    def reduces(self, attempt: Round) -> bool:
        """Whether this is still the same attempt as it is reduced: nobody stopped it, and no other began."""
        now = (self.number, self.attempt, self.phase)
        return now == (attempt.number, attempt.attempt, Phase.REDUCING)

    @property
    def able(self) -> frozenset[str]:
        """Who can be chosen: the devices that are here, without the barred ones where the rest suffices."""
        others = self.present - self.barred.keys()
        return others if len(others) >= self.policy.minimum else self.present

    def seated(self, device: str, seat: Seat) -> Round:
        """With this seat of a member."""
        return replace(self, seats={**self.seats, device: seat})

    def renewed(self, at: float) -> Round:
        """With a new lease for whoever works."""
        until = at + self.policy.lease
        seats = {
            device: replace(seat, until=until, nudged=False) if seat.state is State.WORKING else seat
            for device, seat in self.seats.items()
        }
        return replace(self, seats=seats)

    def lapsed(self, at: float) -> tuple[Round, tuple[str, ...], tuple[str, ...]]:
        """With the leases that have run out by now: who is to get the task again, and who is given up."""
        state, nudged, lost = self, [], []
        for device in self.devices(State.WORKING):
            seat = self.seats[device]
            if seat.until > at:
                continue
            if seat.nudged:
                state = state.seated(device, replace(seat, state=State.LOST, why="no sign of life"))
                lost.append(device)
            else:
                state = state.seated(device, replace(seat, until=at + self.policy.lease, nudged=True))
                nudged.append(device)
        return state, tuple(nudged), tuple(lost)
