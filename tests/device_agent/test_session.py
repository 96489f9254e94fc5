"""The agent's machine: examples of its rules, and all of them against everything a network may do."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from _tasks import DEADLINE, DEVICE, HEARTBEAT, OTHER, blob, task
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from device_agent.session import (
    SHORTEST_BEAT,
    Close,
    Connected,
    Effect,
    Event,
    Fetch,
    Fetched,
    Phase,
    Received,
    SayHello,
    SayStopped,
    SendFailed,
    SendProgress,
    SendReports,
    Session,
    Settle,
    Standing,
    StopWork,
    TaskId,
    Ticked,
    Work,
    Worked,
    WorkFailed,
    advance,
    task_id,
)
from device_agent.store import Store
from edgepfl.wire import Cancel, Commit, RollCall, Task

NEW = Session(DEVICE)


def after(s: Session, *events: Event) -> tuple[Session, tuple[Effect, ...]]:
    """The state after some events, and the effects of the last one."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        s, effects = advance(s, event)
    return s, effects


def here(message: Task) -> tuple[Event, ...]:
    """A task and its blobs come."""
    return Received(message, 0.0), Fetched(message.bundle.sha256), Fetched(message.download.sha256)


def done(message: Task) -> tuple[Event, ...]:
    """A task is done."""
    return *here(message), Worked(task_id(message))


def test_a_task_is_settled_fetched_worked_and_reported() -> None:
    first = task()
    s, effects = after(NEW, Received(first, 5.0))
    assert effects == (Settle(task_id(first), -1), Fetch(first.bundle), Fetch(first.download))
    assert (s.phase, s.expires, s.next_beat) == (Phase.FETCHING, 5.0 + DEADLINE, 5.0 + HEARTBEAT)
    s, effects = after(s, Fetched(first.download.sha256))
    assert (s.phase, effects) == (Phase.FETCHING, ())
    s, effects = after(s, Fetched(first.bundle.sha256))
    assert (s.phase, effects) == (Phase.WORKING, (Work(first),))
    s, effects = after(s, Worked(task_id(first)))
    assert (s.phase, s.task, effects) == (Phase.IDLE, None, (SendReports(),))
    assert s.standing("run") == Standing(-1, (1, 0))


def test_a_repeated_task_is_answered_and_never_done_twice() -> None:
    first = task()
    s, effects = after(NEW, *here(first), Received(first, 3.0))
    assert (s.phase, s.expires, effects) == (Phase.WORKING, 3.0 + DEADLINE, (SendProgress(task_id(first)),))
    s, effects = after(s, Worked(task_id(first)), Received(first, 4.0))
    assert (s.phase, effects) == (Phase.IDLE, (SendReports(),))


def test_a_task_for_others_changes_nothing() -> None:
    assert after(NEW, Received(task(cohort={OTHER: 3}), 0.0)) == (NEW, ())
    working, _ = after(NEW, *here(task()))
    assert after(working, Received(task(round_=2, cohort={OTHER: 3}), 0.0)) == (working, ())


def test_a_restart_keeps_what_the_store_keeps_and_sends_the_report_again() -> None:
    s, _ = after(NEW, *done(task(round_=4, accepted=3)))
    again = Session(DEVICE, s.runs)
    assert after(again, Connected())[1] == (SayHello(TaskId("run", 4, 0)), SendReports())
    assert after(again, Received(task(round_=4, accepted=3), 0.0)) == (again, (SendReports(),))


def test_a_roll_call_is_answered_like_a_connection() -> None:
    assert after(NEW, Received(RollCall(1), 0.0)) == (NEW, (SayHello(None), SendReports()))
    assert after(NEW, Connected()) == (NEW, (SayHello(None), SendReports()))


def test_a_new_attempt_drops_the_report_of_the_old_one_and_its_late_task_changes_nothing() -> None:
    old, new = task(), task(attempt=1)
    s, effects = after(NEW, *done(old), Received(new, 1.0))
    assert effects[0] == Settle(task_id(new), -1)
    assert (s.task, s.standing("run")) == (new, Standing())
    assert after(s, Received(old, 2.0)) == (s, ())
    s, _ = after(s, *here(new)[1:], Worked(task_id(new)))
    assert after(s, Received(old, 2.0)) == (s, ())


def test_a_new_attempt_stops_the_work_on_the_old_one() -> None:
    old, new = task(), task(attempt=1)
    s, effects = after(NEW, *here(old), Received(new, 1.0))
    assert effects[:2] == (StopWork(task_id(old)), Settle(task_id(new), -1))
    assert after(s, Worked(task_id(old))) == (s, ())
    assert after(s, WorkFailed(task_id(old), "x", "")) == (s, ())


def test_the_next_task_settles_what_it_says_was_accepted() -> None:
    s, effects = after(NEW, *done(task()), Received(task(round_=2, accepted=1), 1.0))
    assert effects[0] == Settle(TaskId("run", 2, 0), 1)
    assert s.standing("run") == Standing(1)
    assert after(s, Received(Commit("run", 1, (DEVICE,)), 2.0)) == (s, ())


def test_a_commit_settles_or_drops_the_report_of_its_round() -> None:
    s, _ = after(NEW, *done(task()))
    yes, effects = after(s, Received(Commit("run", 1, (OTHER, DEVICE)), 1.0))
    assert (yes.standing("run"), effects) == (Standing(1), (Close(TaskId("run", 1, 0), accepted=True),))
    no, effects = after(s, Received(Commit("run", 1, (OTHER,)), 1.0))
    assert (no.standing("run"), effects) == (Standing(), (Close(TaskId("run", 1, 0), accepted=False),))
    assert after(s, Received(Commit("run", 0, (DEVICE,)), 1.0)) == (s, ())
    assert after(s, Received(Commit("other", 1, (DEVICE,)), 1.0)) == (s, ())


def test_a_commit_of_a_later_round_shows_that_ours_was_lost_and_we_ask() -> None:
    s, _ = after(NEW, *done(task()))
    assert after(s, Received(Commit("run", 2, (OTHER,)), 1.0)) == (s, (SendReports(),))


def test_a_commit_ends_the_work_on_its_round_and_earlier_ones() -> None:
    working, _ = after(NEW, *here(task(round_=3)))
    for number, stops in ((2, False), (3, True), (4, True)):
        s, effects = after(working, Received(Commit("run", number, (OTHER,)), 1.0))
        assert (s.task is None) is stops
        this = TaskId("run", 3, 0)
        assert effects == ((StopWork(this), SayStopped(this)) if stops else ())


def test_the_report_of_an_old_run_is_settled_after_a_new_run_began() -> None:
    s, _ = after(NEW, *done(task("old")), *here(task("new")))
    assert s.waiting == (TaskId("old", 1, 0),)
    s, effects = after(s, Received(Commit("old", 1, (DEVICE,)), 1.0))
    assert effects == (Close(TaskId("old", 1, 0), accepted=True),)
    assert (s.standing("old"), s.phase, s.task) == (Standing(1), Phase.WORKING, task("new"))


def test_a_task_of_a_settled_round_is_refused_also_after_a_restart() -> None:
    s, _ = after(NEW, *done(task(round_=2)), Received(Commit("run", 2, (DEVICE,)), 1.0))
    for state in (s, Session(DEVICE, s.runs)):
        for number in (1, 2):
            now, effects = after(state, Received(task(round_=number, attempt=5), 2.0))
            assert now == state
            [said] = effects
            assert isinstance(said, SendFailed)
            assert (said.task, said.code) == (TaskId("run", number, 5), "settled")


def test_a_device_that_is_behind_goes_on_from_what_it_has() -> None:
    s, effects = after(NEW, Received(task(round_=6, accepted=5), 0.0))
    assert (s.phase, effects[0]) == (Phase.FETCHING, Settle(TaskId("run", 6, 0), 5))
    assert s.standing("run") == Standing()


def test_an_older_word_does_not_take_back_what_is_settled() -> None:
    s, _ = after(NEW, *done(task(round_=2)), Received(Commit("run", 2, (DEVICE,)), 1.0))
    s, _ = after(s, Received(task(round_=3, accepted=1), 2.0))
    assert (s.standing("run"), s.task) == (Standing(2), task(round_=3, accepted=1))


def test_a_task_that_contradicts_itself_changes_nothing() -> None:
    s, _ = after(NEW, *done(task(round_=2)))
    for message in (task(round_=2, attempt=1, accepted=2), task(round_=3, accepted=3), task(round_=3, accepted=9)):
        assert after(s, Received(message, 1.0)) == (s, ())


def test_cancel_stops_its_own_attempt_only() -> None:
    working, _ = after(NEW, *here(task(round_=2, attempt=1)))
    for other in (Cancel("run", 1, 1, "x"), Cancel("other", 2, 1, "x"), Cancel("run", 2, 0, "late")):
        named = TaskId(other.run, other.round, other.attempt)
        assert after(working, Received(other, 1.0)) == (working, (SayStopped(named),))
    s, effects = after(working, Received(Cancel("run", 2, 1, "x"), 1.0))
    this = TaskId("run", 2, 1)
    assert (s.phase, effects) == (Phase.IDLE, (StopWork(this), SayStopped(this)))
    assert after(s, Worked(TaskId("run", 2, 1))) == (s, ())


def test_a_failure_is_said_once_and_stops_what_else_went_on_for_the_task() -> None:
    fetching, _ = after(NEW, Received(task(), 0.0))
    s, effects = after(fetching, WorkFailed(TaskId("run", 1, 0), "BundleError", "damaged"))
    assert effects == (StopWork(TaskId("run", 1, 0)), SendFailed(TaskId("run", 1, 0), "BundleError", "damaged"))
    assert (s.phase, s.runs) == (Phase.IDLE, fetching.runs)
    assert after(s, WorkFailed(TaskId("run", 1, 0), "BundleError", "damaged")) == (s, ())


def test_progress_is_sent_at_every_heartbeat_until_the_deadline() -> None:
    s, effects = after(NEW, Received(task(), 100.0), Ticked(101.9))
    assert effects == ()
    s, effects = after(s, Ticked(102.0))
    assert (effects, s.next_beat) == ((SendProgress(TaskId("run", 1, 0)),), 104.0)
    s, effects = after(s, Ticked(100.0 + DEADLINE))
    assert (s.phase, effects) == (Phase.IDLE, (StopWork(TaskId("run", 1, 0)),))
    assert after(s, Ticked(999.0)) == (s, ())


def test_a_task_cannot_make_a_device_send_progress_without_pause() -> None:
    s, _ = after(NEW, Received(task(heartbeat=0.0), 1.0))
    assert s.next_beat == 1.0 + SHORTEST_BEAT
    assert after(s, Ticked(2.0))[0].next_beat == 2.0 + SHORTEST_BEAT


def test_a_cancel_drops_the_report_on_its_own_task_and_nothing_else() -> None:
    s, _ = after(NEW, *done(task(round_=2, attempt=1)))
    for other in (Cancel("run", 2, 0, "x"), Cancel("run", 1, 1, "x")):
        assert after(s, Received(other, 1.0))[0] == s
    this = TaskId("run", 2, 1)
    dropped, effects = after(s, Received(Cancel("run", 2, 1, "enough reports"), 1.0))
    assert (dropped.standing("run"), effects) == (Standing(), (SayStopped(this), Close(this, accepted=False)))


def test_a_coordinator_that_does_not_know_a_run_stops_its_work_and_touches_nothing_of_it() -> None:
    s, _ = after(NEW, *done(task()), *here(task("other")))
    s, effects = after(s, Received(Cancel("run", 1, 0, "unknown run", unknown=True), 1.0))
    assert (s.standing("run"), s.muted) == (Standing(-1, (1, 0)), frozenset({"run"}))
    assert effects == (SayStopped(TaskId("run", 1, 0)),)
    assert s.task == task("other")
    s, effects = after(s, Worked(TaskId("other", 1, 0)))
    assert effects == (SendReports(frozenset({"run"})),)  # not that of the run that nobody knows
    for asked in (Connected(), Received(RollCall(1), 2.0)):
        again, effects = after(s, asked)
        assert (again.muted, effects[-1]) == (frozenset(), SendReports())
    working, _ = after(NEW, *here(task(round_=2)))
    stopped, effects = after(working, Received(Cancel("run", 7, 3, "unknown run", unknown=True), 1.0))
    assert (stopped.task, effects) == (None, (StopWork(TaskId("run", 2, 0)), SayStopped(TaskId("run", 2, 0))))


def test_an_unknown_run_of_which_nothing_is_kept_costs_no_memory() -> None:
    s, _ = after(NEW, *(Received(Cancel(f"run{k}", 1, 0, "unknown run", unknown=True), 1.0) for k in range(100)))
    assert s.muted == frozenset()


def test_a_task_with_another_state_is_of_a_coordinator_that_was_set_back_and_is_begun_anew() -> None:
    first = task()
    other = msgspec.structs.replace(first, download=blob("an older state"))
    s, effects = after(NEW, *here(first), Received(other, 3.0))
    assert (s.phase, s.task) == (Phase.FETCHING, other)
    assert effects[0] == StopWork(task_id(first))


def test_a_task_of_an_earlier_round_is_refused_and_of_an_earlier_attempt_is_late() -> None:
    working, _ = after(NEW, *here(task(round_=3, attempt=1)))
    reported, _ = after(NEW, *done(task(round_=3, attempt=1)))
    for s in (working, reported):
        now, effects = after(s, Received(task(round_=2, attempt=5), 1.0))
        assert now == s
        [said] = effects
        assert isinstance(said, SendFailed)
        assert (said.task, said.code) == (TaskId("run", 2, 5), "ahead")
        assert after(s, Received(task(round_=3), 1.0)) == (s, ())


def test_hearing_the_coordinator_keeps_work_alive_and_silence_ends_it() -> None:
    s, _ = after(NEW, *here(task()), Received(RollCall(1), DEADLINE - 1))
    assert after(s, Ticked(DEADLINE + 1))[0].task is not None
    assert after(s, Ticked(2 * DEADLINE - 1))[0].task is None


RUNS, ROUNDS, ATTEMPTS = ("north", "south"), range(1, 4), range(2)


class Anything(RuleBasedStateMachine):
    """Any message in any order, any failure, any restart: the machine beside a real store that obeys its effects."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.store = Store(self.root / "store.db")
        self.s = NEW
        self.now = 0.0
        self.wanted: set[str] = set()
        self.job: TaskId | None = None
        self.kept: Counter[str] = Counter()  # rounds that counted, by run

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    def feed(self, event: Event) -> tuple[Effect, ...]:
        before = self.s
        self.s, effects = advance(before, event)
        assert advance(before, event) == (self.s, effects)
        for effect in effects:
            self.carry_out(effect)
        return effects

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Settle(this, accepted):
                assert not self.wanted
                self.store.settle(this.run, accepted, this.round, this.attempt)
            case Close(this, accepted):
                assert (this.round, this.attempt) == self.store.standings()[this.run][1]
                self.store.close_round(this.run, this.round, accepted=accepted)
            case Fetch(ref):
                self.wanted.add(ref.sha256)
            case Work(message):
                assert (self.job, self.wanted) == (None, set())
                assert self.s.task == message
                self.job = task_id(message)
            case StopWork(this):
                assert self.job in {this, None}
                self.job = None
                self.wanted.clear()
            case SayStopped(this):
                assert self.job != this
            case SendReports(without):
                assert without <= self.s.runs.keys()
            case SendProgress(this):
                assert self.s.task is not None
                assert this == task_id(self.s.task)

    def send(self, message: Task | Commit | Cancel | RollCall) -> None:
        """It arrives, and at once arrives again: the second time nothing changes."""
        self.feed(Received(message, self.now))
        state = self.s
        again = self.feed(Received(message, self.now))
        assert self.s == state
        assert {type(effect) for effect in again} <= {SendProgress, SendReports, SendFailed, SayHello, SayStopped}

    @rule(
        run=st.sampled_from(RUNS),
        round_=st.sampled_from(ROUNDS),
        attempt=st.sampled_from(ATTEMPTS),
        accepted=st.integers(-1, 2),
        ours=st.booleans(),
    )
    def a_task(self, run: str, round_: int, attempt: int, accepted: int, ours: bool) -> None:  # noqa: FBT001  drawn
        """Task(north, round 2, attempt 1, accepted 1) while north 2.0 is pending: 2.0 is dropped and 2.1 begins."""
        before = self.s
        cohort = {DEVICE: accepted} if ours else {OTHER: 1}
        self.send(task(run, round_, attempt, cohort=cohort))
        assert ours or self.s == before

    @rule(run=st.sampled_from(RUNS), round_=st.sampled_from(ROUNDS), counts=st.booleans())
    def a_commit(self, run: str, round_: int, counts: bool) -> None:  # noqa: FBT001  drawn
        """Commit(north, 2, without us) while north 3 is at work: nothing; while north 1 is at work: it is stopped."""
        self.send(Commit(run, round_, (DEVICE,) if counts else (OTHER,)))

    @rule(
        run=st.sampled_from(RUNS),
        round_=st.sampled_from(ROUNDS),
        attempt=st.sampled_from(ATTEMPTS),
        unknown=st.sampled_from((False, False, True)),
    )
    def a_cancel(self, run: str, round_: int, attempt: int, unknown: bool) -> None:  # noqa: FBT001  drawn
        """Cancel(north, 2, 0) while north 2.0 is fetched: its blobs are wanted no longer; while 2.1 is: nothing."""
        before = self.s.runs
        self.send(Cancel(run, round_, attempt, "abandoned", unknown=unknown))
        assert not unknown or self.s.runs == before

    @rule(connected=st.booleans())
    def somebody_asks(self, connected: bool) -> None:  # noqa: FBT001  drawn
        """RollCall, or a new connection, while south 1.0 is pending: Hello says so and its report is sent again."""
        effects = self.feed(Connected() if connected else Received(RollCall(1), self.now))
        assert effects == (SayHello(self.s.waiting[-1] if self.s.waiting else None), SendReports())

    @precondition(lambda self: self.wanted)
    @rule(first=st.booleans())
    def a_blob_comes(self, first: bool) -> None:  # noqa: FBT001  drawn
        """Fetched(bundle) and then Fetched(download): work begins with the second."""
        sha256 = sorted(self.wanted)[0 if first else -1]
        self.wanted.discard(sha256)
        effects = self.feed(Fetched(sha256))
        assert [type(effect) for effect in effects] == ([] if self.wanted else [Work])

    @rule(run=st.sampled_from(RUNS))
    def a_blob_of_before_comes(self, run: str) -> None:
        """Fetched(bundle of south) while north is at work: nothing."""
        sha256 = blob(f"bundle of {run}").sha256
        if sha256 not in self.wanted:
            before = self.s
            assert self.feed(Fetched(sha256)) == ()
            assert self.s == before

    @precondition(lambda self: self.job)
    @rule()
    def the_work_is_done(self) -> None:
        """North 2.0 is stored as pending, and its report sent."""
        if self.job is None:
            raise AssertionError("see the precondition")
        this, self.job = self.job, None
        self.store.commit_pending(this.run, this.round, this.attempt, keep=b"keep", report=b"report")
        assert self.feed(Worked(this)) == (SendReports(self.s.muted),)
        assert this in self.s.waiting

    @precondition(lambda self: self.s.task)
    @rule()
    def the_work_fails(self) -> None:
        """North 2.0 has no room on the disk: the coordinator is told, and nothing of it is left."""
        if self.s.task is None:
            raise AssertionError("see the precondition")
        runs, this = self.s.runs, task_id(self.s.task)
        assert self.feed(WorkFailed(this, "code", "detail")) == (StopWork(this), SendFailed(this, "code", "detail"))
        assert (self.s.phase, self.s.runs) == (Phase.IDLE, runs)

    @rule(seconds=st.sampled_from((0.0, 1.0, HEARTBEAT, DEADLINE)))
    def time_passes(self, seconds: float) -> None:
        """Two seconds: Progress; ten: north 2.0 is given up."""
        self.now += seconds
        before = self.s
        effects = self.feed(Ticked(self.now))
        late = before.task is not None and self.now >= before.expires
        assert (StopWork in {type(effect) for effect in effects}) is late
        assert self.s.runs == before.runs

    @rule()
    def the_power_fails(self) -> None:
        """Whatever was at work is forgotten; pending and settled rounds are as the store has them."""
        self.store.close()
        self.store = Store(self.root / "store.db")
        self.job = None
        self.wanted.clear()
        self.s = Session(DEVICE, {run: Standing(*rows) for run, rows in self.store.standings().items()})

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "s"):
            check(self.s, self.store, self.wanted, self.job)


def check(s: Session, store: Store, wanted: set[str], job: TaskId | None) -> None:
    """Everything that is true of a session between two events."""
    stored = {run: Standing(*rows) for run, rows in store.standings().items()}
    assert {run: each for run, each in s.runs.items() if each != Standing()} == stored
    assert [(out.run, out.round, out.attempt) for out in store.outbox()] == [
        (this.run, this.round, this.attempt) for this in s.waiting
    ]
    assert s.missing == wanted
    assert (s.task is None) is (s.phase is Phase.IDLE)
    assert bool(s.missing) is (s.phase is Phase.FETCHING)
    assert job == (task_id(s.task) if s.task is not None and s.phase is Phase.WORKING else None)
    if s.task is not None:
        mine = s.standing(s.task.run)
        assert mine.settled < s.task.round
        assert mine.pending is None or mine.pending < (s.task.round, s.task.attempt)
        assert s.device in {member.device for member in s.task.cohort}


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
