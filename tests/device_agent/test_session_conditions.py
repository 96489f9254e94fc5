"""The agent's machine and the conditions of a run: examples of its rules, and all of them against any weather."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from _tasks import DEADLINE, DEVICE, HEARTBEAT, OTHER, task
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from device_agent.conditions_outlook import HOLD
from device_agent.session import (
    Connected,
    Effect,
    Event,
    Fetch,
    Fetched,
    Pause,
    Phase,
    Received,
    Resume,
    SayHello,
    SendFailed,
    SendProgress,
    SendReports,
    Sensed,
    Session,
    Settle,
    Standing,
    StopWork,
    TaskId,
    Ticked,
    Work,
    Worked,
    advance,
    task_id,
)
from edgepfl.eligibility import Conditions, Readings
from edgepfl.wire import Cancel, Commit, RollCall, Task

NEW = Session(DEVICE)
ASKED = Conditions(charging=True, pause_limit=5.0)
STRICT = Conditions(charging=True, on_lost="give up")
PLUGGED, UNPLUGGED = Readings(powered=True), Readings(powered=False)
THIS = TaskId("run", 1, 0)


def after(s: Session, *events: Event) -> tuple[Session, tuple[Effect, ...]]:
    """The state after some events, and the effects of the last one."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        s, effects = advance(s, event)
    return s, effects


def asking(conditions: Conditions | None, *, round_: int = 1, attempt: int = 0, accepted: int = -1) -> Task:
    """A task with conditions."""
    return msgspec.structs.replace(task("run", round_, attempt, accepted=accepted), conditions=conditions)


def working(conditions: Conditions = ASKED) -> Session:
    """A device at work, with all conditions met."""
    first = asking(conditions)
    blobs = Fetched(first.bundle.sha256), Fetched(first.download.sha256)
    s, effects = after(NEW, Received(first, 0.0, PLUGGED), *blobs)
    assert effects == (Work(first),)
    return s


def test_a_roll_call_brings_conditions_and_the_hello_says_what_is_unmet() -> None:
    s, effects = after(NEW, Received(RollCall(1, ASKED), 0.0, UNPLUGGED))
    assert effects == (SayHello(None), SendReports())
    assert s.outlook.reasons == ("not charging",)
    assert after(s, Sensed(UNPLUGGED, 1.0)) == (s, ())
    s, effects = after(s, Sensed(PLUGGED, HOLD))
    assert (s.outlook.reasons, effects) == ((), (SayHello(None),))


def test_the_end_of_a_run_ends_its_conditions() -> None:
    s, effects = after(NEW, Received(RollCall(1, ASKED), 0.0, UNPLUGGED), Received(RollCall(2), 9.0))
    assert (s.outlook.policy, s.outlook.reasons, effects) == (None, (), (SayHello(None), SendReports()))
    assert after(s, Sensed(UNPLUGGED, 10.0)) == (s, ())


def test_a_task_is_declined_with_the_reason_and_what_it_settles_is_settled() -> None:
    s, _ = after(NEW, Received(task(), 0.0))
    s = replace(s, runs={"run": Standing(-1, (1, 0))}, phase=Phase.IDLE, task=None, missing=frozenset())
    s, effects = after(s, Received(asking(ASKED, round_=2, accepted=1), 1.0, UNPLUGGED))
    this = TaskId("run", 2, 0)
    assert effects == (Settle(this, 1), SendFailed(this, "conditions", "not charging"), SayHello(None))
    assert (s.phase, s.task, s.standing("run")) == (Phase.IDLE, None, Standing(1))
    again, effects = after(s, Received(asking(ASKED, round_=2, accepted=1), 2.0, UNPLUGGED))
    assert (again, effects) == (s, (Settle(this, 1), SendFailed(this, "conditions", "not charging")))


def test_a_task_that_is_declined_ends_the_one_at_hand() -> None:
    s, effects = after(working(), Received(asking(ASKED, attempt=1), 1.0, UNPLUGGED))
    assert effects[0] == StopWork(THIS)
    assert (s.task, s.paused) == (None, None)


def test_a_task_without_conditions_is_done_whatever_the_sensors_say() -> None:
    s, effects = after(NEW, Received(RollCall(1, ASKED), 0.0, UNPLUGGED), Received(task(), 1.0))
    assert (s.phase, s.outlook.policy) == (Phase.FETCHING, None)
    assert Fetch(task().bundle) in effects


def test_work_that_loses_a_condition_pauses_and_goes_on_when_it_is_back() -> None:
    s, effects = after(working(), Sensed(UNPLUGGED, 1.0))
    assert effects == (Pause(THIS), SendProgress(THIS, "not charging"), SayHello(None))
    assert (s.phase, s.paused) == (Phase.WORKING, 1.0)
    s, effects = after(s, Ticked(HEARTBEAT))
    assert effects == (SendProgress(THIS, "not charging"),)
    assert after(s, Received(asking(ASKED), 3.0, UNPLUGGED))[1] == (SendProgress(THIS, "not charging"),)
    s, effects = after(replace(s, outlook=replace(s.outlook, hold=0.0)), Sensed(PLUGGED, 4.0))
    assert effects == (Resume(THIS), SendProgress(THIS), SayHello(None))
    assert (s.phase, s.paused) == (Phase.WORKING, None)
    assert after(s, Worked(THIS))[1] == (SendReports(),)


def test_a_pause_ends_with_the_task_after_its_limit() -> None:
    paused, _ = after(working(), Sensed(UNPLUGGED, 1.0))
    assert paused.due == (HEARTBEAT, DEADLINE, 6.0)
    s, effects = after(paused, Ticked(5.9), Ticked(6.0))
    assert effects == (StopWork(THIS), SendFailed(THIS, "conditions", "paused for 5 s: not charging"))
    assert (s.phase, s.paused, s.due) == (Phase.IDLE, None, ())


def test_work_is_given_up_at_once_where_the_policy_says_so() -> None:
    s, effects = after(working(STRICT), Sensed(UNPLUGGED, 1.0))
    assert effects == (StopWork(THIS), SendFailed(THIS, "conditions", "not charging"), SayHello(None))
    assert s.phase is Phase.IDLE


def test_a_condition_that_is_lost_before_the_work_begins_ends_the_task() -> None:
    fetching, _ = after(NEW, Received(asking(ASKED), 0.0, PLUGGED))
    s, effects = after(fetching, Sensed(UNPLUGGED, 1.0))
    assert effects == (StopWork(THIS), SendFailed(THIS, "conditions", "not charging"), SayHello(None))
    assert s.phase is Phase.IDLE


@pytest.mark.parametrize(
    ("event", "stops"),
    [
        (Received(Cancel("run", 1, 0, "enough"), 2.0), True),
        (Received(Commit("run", 1, (OTHER,)), 2.0), True),
        (Ticked(DEADLINE), True),
        (Received(Cancel("run", 1, 1, "another"), 2.0), False),
    ],
    ids=str,
)
def test_whatever_ends_work_ends_it_while_it_is_paused(event: Event, stops: bool) -> None:  # noqa: FBT001  drawn
    patient = Conditions(charging=True, pause_limit=1e6)
    paused, _ = after(working(patient), Sensed(UNPLUGGED, 1.0))
    s, effects = after(paused, event)
    assert (StopWork(THIS) in effects, s.paused is None) == (stops, stops)


def test_another_run_that_asks_less_lets_the_work_go_on() -> None:
    paused, _ = after(working(), Sensed(UNPLUGGED, 1.0))
    s, effects = after(paused, Received(RollCall(2), 2.0))
    assert effects[:2] == (Resume(THIS), SendProgress(THIS))
    assert s.paused is None


def test_a_connection_says_what_is_unmet_and_is_not_said_again() -> None:
    s, _ = after(NEW, Received(RollCall(1, ASKED), 0.0, PLUGGED))
    lost = replace(s, outlook=s.outlook.seen(UNPLUGGED, 1.0))
    s, effects = after(lost, Connected())
    assert effects == (SayHello(None), SendReports())
    assert after(s, Sensed(UNPLUGGED, 2.0)) == (s, ())


LIMITS = (Conditions(charging=True, max_temperature=75.0, pause_limit=6.0), STRICT, None)


class AnyWeather(RuleBasedStateMachine):
    """Any readings at any time: the machine beside a job that pauses, goes on and stops as it is told."""

    @initialize()
    def start(self) -> None:
        self.s = NEW
        self.now = 0.0
        self.wanted: set[str] = set()
        self.job: TaskId | None = None
        self.rests = False
        self.told: tuple[str, ...] = ()

    def feed(self, event: Event) -> tuple[Effect, ...]:
        before = self.s
        self.s, effects = advance(before, event)
        assert advance(before, event) == (self.s, effects)
        for effect in effects:
            self.carry_out(effect)
        return effects

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Fetch(ref):
                self.wanted.add(ref.sha256)
            case Work(message):
                assert self.job is None
                self.job = task_id(message)
            case Pause(this):
                assert (self.job, self.rests) == (this, False)
                self.rests = True
            case Resume(this):
                assert (self.job, self.rests) == (this, True)
                self.rests = False
            case StopWork():
                self.job, self.rests = None, False
                self.wanted.clear()
            case SayHello():
                self.told = tuple(each.name for each in self.s.outlook.unmet)
            case SendProgress(_, paused):
                assert bool(paused) is (self.s.paused is not None)

    @rule(number=st.integers(1, 3), asked=st.sampled_from(LIMITS), powered=st.booleans(), hot=st.booleans())
    def a_task(self, number: int, asked: Conditions | None, powered: bool, hot: bool) -> None:  # noqa: FBT001  drawn
        """Round 2 with conditions, while round 1 is paused: round 1 is stopped, and round 2 begins or is declined."""
        self.feed(Received(asking(asked, round_=number), self.now, self.weather(powered, hot)))

    @rule(asked=st.sampled_from(LIMITS), powered=st.booleans(), hot=st.booleans())
    def a_roll_call(self, asked: Conditions | None, powered: bool, hot: bool) -> None:  # noqa: FBT001  drawn
        """Nothing is asked any more while round 1 is paused: it goes on."""
        effects = self.feed(Received(RollCall(1, asked), self.now, self.weather(powered, hot)))
        assert effects[-2:] == (SayHello(None if not self.s.waiting else self.s.waiting[-1]), SendReports())
        assert self.s.outlook.policy == asked

    @rule(powered=st.booleans(), hot=st.booleans())
    def the_sensors_are_read(self, powered: bool, hot: bool) -> None:  # noqa: FBT001  drawn
        """Unplugged at work: it pauses, or gives up; and the coordinator is told once."""
        self.feed(Sensed(self.weather(powered, hot), self.now))
        assert set(self.told) == {each.name for each in self.s.outlook.unmet}

    @precondition(lambda self: self.wanted)
    @rule()
    def a_blob_comes(self) -> None:
        """The last one: the work begins."""
        sha256 = min(self.wanted)
        self.wanted.discard(sha256)
        self.feed(Fetched(sha256))

    @precondition(lambda self: self.job and not self.rests)
    @rule()
    def the_work_is_done(self) -> None:
        """Only what does not rest can end."""
        if self.job is None:
            raise AssertionError("see the precondition")
        this, self.job = self.job, None
        assert self.feed(Worked(this)) == (SendReports(),)

    @rule(number=st.integers(1, 3))
    def a_cancel(self, number: int) -> None:
        """Also of what rests."""
        self.feed(Received(Cancel("run", number, 0, "enough"), self.now))

    @rule(seconds=st.sampled_from((0.5, HEARTBEAT, DEADLINE)))
    def time_passes(self, seconds: float) -> None:
        """A pause of six seconds ends the task, and so does its deadline."""
        self.now += seconds
        self.feed(Ticked(self.now))
        policy = self.s.outlook.policy
        if self.s.paused is not None and policy is not None:
            assert self.now < self.s.paused + policy.pause_limit
        assert all(due > self.now for due in self.s.due if due != self.s.next_beat)

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "s"):
            return
        s, unmet = self.s, bool(self.s.outlook.unmet)
        assert self.rests is (s.paused is not None)
        assert self.job == (task_id(s.task) if s.task is not None and s.phase is Phase.WORKING else None)
        assert not (s.phase is Phase.FETCHING and unmet)
        assert (s.phase is Phase.WORKING and unmet) is (s.paused is not None)
        if s.paused is not None:
            assert s.outlook.policy is not None
            assert s.outlook.policy.on_lost == "pause"

    @staticmethod
    def weather(powered: bool, hot: bool) -> Readings:  # noqa: FBT001  drawn
        return Readings(powered=powered, temperature=80.0 if hot else 40.0)


TestAnyWeather = AnyWeather.TestCase
TestAnyWeather.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
