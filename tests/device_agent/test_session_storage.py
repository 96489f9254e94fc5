"""What the session machine does when the storage lost something, or could not take something."""

from __future__ import annotations

from _tasks import DEVICE, task

from device_agent.session import (
    Connected,
    Event,
    Fetched,
    Phase,
    Received,
    SendReports,
    Session,
    Settle,
    Standing,
    Step,
    TaskId,
    Unchanged,
    Work,
    Worked,
    advance,
    task_id,
)
from edgepfl.wire import Commit, Task

TORN = Standing(-1, (1, 0), whole=False)


def after(s: Session, *events: Event) -> Step:
    """The state after some events, and the effects of the last one."""
    step: Step = (s, ())
    for event in events:
        step = advance(step[0], event)
    return step


def fetched(message: Task) -> tuple[Event, ...]:
    return Fetched(message.bundle.sha256), Fetched(message.download.sha256)


def test_a_report_whose_upload_is_lost_is_sent_and_its_task_is_done_again_when_it_comes() -> None:
    first = task()
    torn = Session(DEVICE, {"run": TORN})
    assert SendReports() in after(torn, Connected())[1]
    s, effects = after(torn, Received(first, 0.0))
    assert effects[0] == Settle(task_id(first), -1)
    assert s.phase is Phase.FETCHING
    assert s.standing("run") == TORN  # it may still count
    s, effects = after(s, *fetched(first))
    assert effects == (Work(first),)
    s, effects = after(s, Worked(task_id(first)))
    assert (effects, s.standing("run")) == ((SendReports(),), Standing(-1, (1, 0)))
    assert after(s, Received(first, 1.0))[1] == (SendReports(),)


def test_a_lost_upload_that_counts_is_settled_like_any_other() -> None:
    torn = Session(DEVICE, {"run": TORN})
    s, _ = after(torn, Received(Commit("run", 1, (DEVICE,)), 0.0))
    assert s.standing("run") == Standing(1)
    s, _ = after(torn, Received(task(round_=2, accepted=1), 0.0))
    assert s.standing("run") == Standing(1)
    working, _ = after(torn, Received(task(), 0.0), *fetched(task()))
    s, _ = after(working, Received(Commit("run", 1, (DEVICE,)), 0.0))
    assert (s.phase, s.standing("run")) == (Phase.IDLE, Standing(1))


def test_an_earlier_attempt_is_late_also_when_the_later_ones_upload_is_lost() -> None:
    torn = Session(DEVICE, {"run": Standing(-1, (1, 1), whole=False)})
    assert after(torn, Received(task(), 0.0)) == (torn, ())


def test_what_the_store_did_not_take_is_not_taken_by_the_machine() -> None:
    s, _ = after(Session(DEVICE), Received(task(), 0.0), *fetched(task()), Worked(task_id(task())))
    settled, _ = after(s, Received(Commit("run", 1, (DEVICE,)), 0.0))
    assert settled.standing("run") == Standing(1)
    s, effects = after(settled, Unchanged({"run": Standing(-1, (1, 0))}))
    assert (s.standing("run"), effects) == (Standing(-1, (1, 0)), ())
    assert s.waiting == (TaskId("run", 1, 0),)
    assert after(s, Received(Commit("run", 1, (DEVICE,)), 0.0))[0].standing("run") == Standing(1)  # it comes again
