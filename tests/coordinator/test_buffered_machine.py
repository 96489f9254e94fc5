"""Buffered rounds one after the other among events in any order, with their journal on a real file."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from _buffered_rules import check, check_seats
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator import buffered, events, rounds
from coordinator.config import RunConfig
from coordinator.events import Event
from coordinator.journal import Checkpoint, Journal, Result, RoundCost, RunRow, Status
from coordinator.seats import GOING_ON, Phase, Policy, Round, State
from edgepfl.wire import Report

DEVICES = ("ant", "bee", "cat", "dog", "eel")
ANYONE = st.sampled_from((*DEVICES, "stranger"))
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  only faster
OWN = (events.Resumed, events.Ticked, events.Stored, events.StoreFailed)  # the service's, never repeated


class Updates(RuleBasedStateMachine):
    """One run, the process that runs it killed and started at any time.

    ``tasks`` and ``counted`` are what the devices would know: the tasks that each was handed, and those whose reports
    the server counted.
    """

    @initialize(
        goal=st.integers(1, 5),
        buffer=st.integers(1, 4),
        minimum=st.integers(1, 2),
        stale=st.integers(0, 3),
        deadline=st.sampled_from([4.0, 30.0]),
        lease=st.sampled_from([1.0, 5.0]),
    )
    def start(self, goal: int, buffer: int, minimum: int, stale: int, deadline: float, lease: float) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY))
        self.journal = Journal(self.root / "journal.db")
        self.journal.create(RunRow("run", RunConfig(), "b" * 64, Status.RUNNING, ""), Checkpoint(0, "a" * 64, ()))
        self.now = 100.0
        buffer = min(buffer, goal)
        self.policy = Policy(
            goal, min(minimum, buffer), 2.0, deadline, lease, halt=1.0, buffer=buffer, max_staleness=stale
        )
        self.tasks: dict[str, list[tuple[int, int]]] = {}
        self.counted: list[tuple[str, int]] = []
        self.past: list[Event] = []
        self.open(Round(0, 0, self.policy), 1, 0)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.root)

    def following(self, before: Round, number: int, attempt: int) -> Round:
        here = frozenset(DEVICES[:2])
        return buffered.successor(before, Round(number, attempt, self.policy, since=self.now, present=here), "c" * 64)

    def open(self, before: Round, number: int, attempt: int) -> None:
        after = self.following(before, number, attempt)
        check_seats(after, events.Ticked(self.now), after)
        for device, seat in after.seats.items():
            assert seat.task == before.task_of(device)
        self.journal.open_round("run", after)
        self.state = after
        self.feed(events.Ticked(self.now))

    def feed(self, event: Event) -> None:
        """What the service does."""
        before = self.state
        after, effects = rounds.advance(before, event)
        check(before, event, after, effects)
        self.past.append(event)
        if after == before and not effects:
            return
        if not isinstance(event, events.Stored):
            self.journal.append("run", event, self.report(event.device) if isinstance(event, events.Reported) else None)
        self.state = after
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: object) -> None:
        match effect:
            case events.Choose(devices, count):
                self.feed(events.Chosen(devices[:count], self.now))
            case events.Announce(devices):
                for device in devices:
                    self.hand(device)
            case events.Commit():
                self.open(self.state, self.state.number + 1, 0)
            case events.Abandon():
                self.open(self.state, self.state.number, self.state.attempt + 1)

    def hand(self, device: str) -> None:
        task = self.state.task_of(device)
        assert task is not None
        known = self.tasks.setdefault(device, [])
        assert not known or task > known[-1]  # a device takes nothing that is not later
        known.append(task)

    def report(self, device: str) -> Report:
        round_, attempt = self.state.task_of(device) or (0, 0)
        return Report(device, 1, "run", round_, attempt, 5, 2, None, {}, {}, "0" * 64)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 2.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(events.Ticked(self.now))

    @rule(device=ANYONE, kind=st.sampled_from([events.Present, events.Absent, events.Progressed]))
    def hear(self, device: str, kind: type[events.Present | events.Absent | events.Progressed]) -> None:
        self.feed(kind(device, self.now))

    @rule(devices=st.lists(ANYONE, max_size=4))
    def reports(self, devices: list[str]) -> None:
        for device in devices:
            self.feed(events.Reported(device, self.now))

    @rule(device=ANYONE)
    def fails(self, device: str) -> None:
        self.feed(events.Failed(device, "no data", self.now))

    @precondition(lambda self: self.state.phase is Phase.REDUCING)
    @rule(works=st.sampled_from([True, True, False]))
    def reduced(self, works: bool) -> None:  # noqa: FBT001  hypothesis draws it
        self.now += 0.1
        if not works:
            self.feed(events.StoreFailed("not finite", self.now))
            return
        number, devices = self.state.number, self.state.devices(State.REPORTED)
        tasks = {device: self.state.task_of(device) or (0, 0) for device in devices}
        self.counted += [(device, round_) for device, (round_, _) in tasks.items()]
        results = tuple(Result(number, device, 5, 2, {}, {}, "", number - tasks[device][0]) for device in devices)
        after = self.following(self.state, number + 1, 0)
        self.journal.commit("run", Checkpoint(number, "a" * 64, ()), results, RoundCost(0, 0, 0.0), following=after)
        assert self.journal.open_state("run") == after
        assert {device: self.journal.accepted("run")[device] for device in devices} == {
            device: round_ for device, (round_, _) in tasks.items()
        }
        self.feed(events.Stored(self.now))

    @rule(which=st.integers(0, 1 << 16))
    def repeat(self, which: int) -> None:
        """Anything that was ever said is said again."""
        event = self.past[which % len(self.past)]
        if not isinstance(event, OWN):
            self.feed(replace(event, at=self.now))

    @rule(clock=st.sampled_from([0.0, 1e6]))
    def crash(self, clock: float) -> None:
        """SIGKILL, and a new process whose clock has nothing to do with the old one's."""
        self.journal.close()
        self.journal = Journal(self.root / "journal.db")
        found = self.journal.open_state("run")
        assert found == self.state
        self.now = clock
        self.feed(events.Resumed(self.now))

    @rule()
    def reconnect(self) -> None:
        self.feed(events.Reconnected(self.now))

    @invariant()
    def every_report_counts_at_most_once(self) -> None:
        if hasattr(self, "state"):
            assert len(set(self.counted)) == len(self.counted)
            reported = {(device, self.state.task_of(device)) for device in self.state.devices(State.REPORTED)}
            assert not {(device, task[0]) for device, task in reported if task} & set(self.counted)
            assert self.journal.reports("run").keys() == {device for device, _ in reported}

    @invariant()
    def it_ends(self) -> None:
        """From anywhere, silence alone ends a round that reports."""
        if hasattr(self, "state") and self.state.phase is Phase.REPORTING:
            last, _ = rounds.advance(self.state, events.Ticked(self.now + self.policy.deadline + 1))
            assert last.phase not in GOING_ON - {Phase.REDUCING}


Updates.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestUpdates = Updates.TestCase
