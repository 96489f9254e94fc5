"""The round machine among events in any order, and its journal on a real file."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from _round_rules import OVER, Ledger, check
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator import events, rounds
from coordinator.config import RunConfig
from coordinator.events import Event
from coordinator.journal import Checkpoint, Journal, RunRow, Status
from coordinator.rounds import Phase, Policy, Round, State
from edgepfl.wire import Report

DEVICES = ("ant", "bee", "cat", "dog", "eel")
ANSWERS = st.one_of(st.just(frozenset(DEVICES)), st.frozensets(st.sampled_from(DEVICES)))
ANYONE = st.sampled_from((*DEVICES, "stranger"))
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  only faster
CODES = ("DataError", "BundleError", "conditions")
FINAL = (events.Reported, events.Failed, events.Stored, events.StoreFailed, events.Stopped, events.Chosen)


def report(device: str) -> Report:
    return Report(device, 1, "run", 1, 0, 5, 2, None, {"loss": 1.5}, {}, "0" * 64)


class Events(RuleBasedStateMachine):
    """One attempt, the process that runs it killed and started at any time."""

    @initialize(
        goal=st.integers(1, 5),
        minimum=st.integers(1, 3),
        gather=st.sampled_from([0.5, 3.0]),
        deadline=st.sampled_from([4.0, 30.0]),
        lease=st.sampled_from([1.0, 5.0]),
        slow=st.sampled_from([False, False, True]),
        over=st.sampled_from([1.0, 1.5, 3.0]),
        halt=st.sampled_from([0.2, 0.5, 1.0]),
        canary=st.integers(0, 2),
        barred=st.frozensets(st.sampled_from(DEVICES), max_size=3),
        here=ANSWERS,
    )
    def start(
        self,
        goal: int,
        minimum: int,
        gather: float,
        deadline: float,
        lease: float,
        slow: bool,  # noqa: FBT001  hypothesis draws it
        over: float,
        halt: float,
        canary: int,
        barred: frozenset[str],
        here: frozenset[str],
    ) -> None:
        self.root = Path(tempfile.mkdtemp(dir=MEMORY))
        self.journal = Journal(self.root / "journal.db")
        self.journal.create(RunRow("run", RunConfig(), "b" * 64, Status.RUNNING, ""), Checkpoint(0, "a" * 64, ()))
        self.now = 100.0
        policy = Policy(goal, min(goal, minimum), gather, deadline, lease, over, halt)
        why = dict.fromkeys(barred, "it failed 3 times in a row")
        self.state = Round(1, 0, policy, since=self.now, present=here, barred=why)
        self.journal.open_round("run", self.state)
        self.ledger = Ledger()
        self.choice: events.Choose | None = None
        self.slow, self.canary = slow, canary
        self.past: list[Event] = []
        self.reported: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.root)

    def feed(self, event: Event) -> None:
        """What the service does."""
        before = self.state
        after, effects = rounds.advance(before, event)
        check(before, event, after, effects)
        self.past.append(event)
        if after == before and not effects:
            return
        if not isinstance(event, events.Stored):
            self.journal.append("run", event, report(event.device) if isinstance(event, events.Reported) else None)
        self.state = after
        self.ledger.note(effects)
        choice = next((e for e in effects if isinstance(e, events.Choose)), None)
        if choice is not None:
            self.choice = choice
            if not self.slow:  # the service answers before anything else happens, or dies
                chosen = choice.devices[: choice.count]
                self.feed(events.Chosen(chosen, self.now, choice.devices[1:], chosen[: self.canary]))
        again, more = rounds.advance(after, event)
        if isinstance(event, FINAL):
            assert (again, more) == (after, ())  # told twice, done once

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 2.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.feed(events.Ticked(self.now))

    @rule(device=ANYONE)
    def present(self, device: str) -> None:
        self.feed(events.Present(device, self.now))

    @rule(device=ANYONE)
    def absent(self, device: str) -> None:
        self.feed(events.Absent(device, self.now))

    @precondition(lambda self: self.choice is not None)
    @rule(fewer=st.sampled_from([0, 0, 0, 1, 5]))
    def chosen(self, fewer: int) -> None:
        assert self.choice is not None
        devices = self.choice.devices
        chosen = devices[: max(0, self.choice.count - fewer)]
        self.feed(events.Chosen(chosen, self.now, devices[fewer:], devices[: self.canary]))

    @rule(device=ANYONE, steps=st.integers(0, 2))
    def progressed(self, device: str, steps: int) -> None:
        self.feed(events.Progressed(device, self.now, steps))

    @rule(devices=st.lists(ANYONE, max_size=5), seconds=st.sampled_from([0.0, 0.1]))
    def report(self, devices: list[str], seconds: float) -> None:
        for device in devices:
            self.now += seconds
            self.feed(events.Reported(device, self.now))

    @rule(device=ANYONE, often=st.integers(0, 3), code=st.sampled_from(CODES))
    def fail(self, device: str, often: int, code: str) -> None:
        if often == 3:
            self.feed(events.Failed(device, "no data", self.now, code))

    @rule(event=st.sampled_from([events.Stored, events.Stored, events.StoreFailed]))
    def reduced(self, event: type[events.Stored | events.StoreFailed]) -> None:
        self.now += 0.1
        self.feed(events.Stored(self.now) if event is events.Stored else events.StoreFailed("no", self.now))

    @rule(answer=ANSWERS)
    def reconnected(self, answer: frozenset[str]) -> None:
        self.feed(events.Reconnected(self.now))
        self.roll_call(answer)

    def roll_call(self, answer: frozenset[str]) -> None:
        for device in sorted(answer):
            self.feed(events.Present(device, self.now))

    @rule(often=st.integers(0, 9))
    def stop(self, often: int) -> None:
        if often == 9:  # else every example would end early
            self.feed(events.Stopped(self.now))

    @rule(which=st.integers(0, 1 << 16))
    def repeat(self, which: int) -> None:
        """Anything that was ever said is said again, its old time and all."""
        if self.past:
            event = self.past[which % len(self.past)]
            if not isinstance(event, events.Resumed | events.Ticked):  # the service's own, never repeated
                self.feed(replace(event, at=self.now))

    @precondition(lambda self: self.state.phase is not Phase.COMMITTED)  # then the journal has no open attempt
    @rule(clock=st.sampled_from([0.0, 1e6]), answer=ANSWERS)
    def crash(self, clock: float, answer: frozenset[str]) -> None:
        """SIGKILL, and a new process whose clock has nothing to do with the old one's."""
        self.journal.close()
        self.journal = Journal(self.root / "journal.db")
        found = self.journal.open_state("run")
        assert found == self.state
        assert found is not None
        self.state, self.now, self.ledger, self.choice = found, clock, Ledger(), None
        self.past = [event for event in self.past if not isinstance(event, events.Chosen)]
        self.feed(events.Resumed(self.now))
        self.roll_call(answer)

    @rule()
    def compact(self) -> None:
        if self.state.phase is not Phase.COMMITTED:
            self.journal.compact("run", self.state)

    @invariant()
    def nothing_reported_is_lost(self) -> None:
        if not hasattr(self, "state"):
            return
        now = set(self.state.devices(State.REPORTED))
        assert now >= self.reported
        self.reported = now
        assert self.journal.reports("run").keys() == now

    @invariant()
    def the_journal_knows_it_all(self) -> None:
        if hasattr(self, "state") and self.state.phase is not Phase.COMMITTED:
            assert self.journal.open_state("run") == self.state

    @invariant()
    def it_ends(self) -> None:
        """From anywhere, silence alone ends a round that reports."""
        if hasattr(self, "state") and self.state.phase is Phase.REPORTING:
            last, _ = rounds.advance(self.state, events.Ticked(self.now + self.state.policy.deadline + 1))
            assert last.phase in {Phase.REDUCING, *OVER}


Events.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestEvents = Events.TestCase


def test_a_canary_that_lives_and_takes_no_step_does_not_hold_the_others_for_ever() -> None:
    names = tuple(f"pi-{number}" for number in range(8))
    policy = Policy(goal=8, minimum=4, deadline=1e6, lease=10.0)
    state, _ = rounds.advance(
        Round(1, 0, policy, present=frozenset(names)), events.Chosen(names, 0.0, canaries=("pi-3",))
    )
    given: list[int] = []
    for at in range(1, 100):
        state, _ = rounds.advance(state, events.Progressed("pi-3", float(at), 0))
        state, _ = rounds.advance(state, events.Ticked(float(at)))
        for device in state.devices(State.WORKING):
            state, _ = rounds.advance(state, events.Progressed(device, float(at), 0))
        given.append(len(state.devices(State.WORKING)))
    assert given[18] == 1
    assert given[19:21] == [2, 2]
    assert given[-1] == 8
