"""What each device goes through, as its agent tells it: stories for people, and the reports that it sent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from device_agent.session import (
    Close,
    Connected,
    Effect,
    Event,
    Fetch,
    Pause,
    Received,
    Resume,
    SendFailed,
    SendReports,
    Settle,
    StopWork,
    TaskId,
    Work,
    Worked,
    task_id,
)
from edgepfl.bus import Disconnected
from edgepfl.wire import Cancel, Task
from simulators.emulation.report import Told

ACCEPTED, REFUSED = "accepted", "refused"
"""What a story says of a report that counts, and of one that does not."""
LINES = 1000
"""Of one device's story; of a longer one the last so many are kept."""


@dataclass(slots=True)
class _Chapter:
    """What is known of one device.

    Attributes:
        lines: its story.
        connected: whether it has a connection.
        at: the task that it has.
        unsent: reports that are made, and wait for a connection.
        open: the report whose fate it does not know.
    """

    lines: deque[Told] = field(default_factory=lambda: deque(maxlen=LINES))
    connected: bool = False
    at: TaskId | None = None
    unsent: list[TaskId] = field(default_factory=list)
    open: TaskId | None = None


class Chronicle:
    """The stories of a fleet.

    Args:
        took: told of each task that a device takes, with whose it is.
        clock: seconds that never go back.
    """

    def __init__(
        self, *, took: Callable[[str, TaskId], None] = lambda _, __: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._told = took
        self._clock = clock
        self._began = clock()
        self._chapters: dict[str, _Chapter] = {}
        self.sent: set[tuple[str, TaskId]] = set()
        """Reports that devices gave to their connection, with whose they are."""
        self.cancelled: set[tuple[str, TaskId]] = set()
        """Reports that the coordinator said it does not want."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    def begin(self) -> None:
        """The run begins now: what was told was before."""
        before, self._began = self.now, self._clock()
        for chapter in self._chapters.values():
            earlier = [msgspec.structs.replace(line, at=round(line.at - before, 3)) for line in chapter.lines]
            chapter.lines = deque(earlier, LINES)

    def story(self, device: str) -> tuple[Told, ...]:
        """What a device went through."""
        return tuple(self._chapters[device].lines) if device in self._chapters else ()

    def stories(self) -> dict[str, tuple[Told, ...]]:
        """All of them."""
        return {device: tuple(chapter.lines) for device, chapter in sorted(self._chapters.items())}

    def tell(self, device: str, what: str, round_: int = 0, detail: str = "") -> None:
        """Add a line to a device's story."""
        self._chapter(device).lines.append(Told(round(self.now, 3), what, round_, detail))

    def lost_power(self, device: str) -> None:
        """A device was switched off: what it had not sent is not sent."""
        chapter = self._chapter(device)
        chapter.connected = False
        chapter.unsent.clear()
        chapter.at = None

    def hear(self, device: str, event: Event | Disconnected, effects: tuple[Effect, ...]) -> None:
        """As :data:`~simulators.fleet.FleetListener`."""
        match event:
            case Connected():
                self._chapter(device).connected = True
                self.tell(device, "connected")
            case Disconnected(reason):
                self._chapter(device).connected = False
                self.tell(device, "disconnected", detail=reason)
            case Worked(task):
                self._worked(device, task)
            case Received(Cancel() as cancel):
                self._cancelled(device, cancel)
            case _:
                pass
        for effect in effects:
            self._follow(device, event, effect)

    def _follow(self, device: str, event: Event | Disconnected, effect: Effect) -> None:
        match effect:
            case Fetch() | Work() if isinstance(event, Received) and isinstance(event.message, Task):
                self._took(device, task_id(event.message))
            case SendReports():
                self._send(device)
            case Close(task, accepted):
                self._settled(device, task, ACCEPTED if accepted else REFUSED)
            case Settle(task, accepted_round):
                self._learned(device, task, accepted_round)
            case SendFailed(task, code, detail):
                self.tell(device, "failed", task.round, f"{code}: {detail}")
            case StopWork(task):
                self._chapter(device).at = None
                self.tell(device, "stopped", task.round)
            case Pause(task):
                self.tell(device, "paused", task.round)
            case Resume(task):
                self.tell(device, "resumed", task.round)
            case _:
                pass

    def _took(self, device: str, task: TaskId) -> None:
        chapter = self._chapter(device)
        if chapter.at != task:
            chapter.at = task
            self.tell(device, "task", task.round, f"attempt {task.attempt + 1}" if task.attempt else "")
            self._told(device, task)

    def _worked(self, device: str, task: TaskId) -> None:
        chapter = self._chapter(device)
        chapter.at, chapter.open = None, task
        chapter.unsent.append(task)
        self.tell(device, "report", task.round)

    def _send(self, device: str) -> None:
        chapter = self._chapter(device)
        if chapter.connected:
            self.sent |= {(device, task) for task in chapter.unsent}
            chapter.unsent.clear()

    def _learned(self, device: str, at: TaskId, accepted_round: int) -> None:
        """A new task says which of its reports was the last that counts."""
        task = self._chapter(device).open
        if task is not None and task != at and task.run == at.run:
            self._settled(device, task, ACCEPTED if task.round == accepted_round else REFUSED)

    def _settled(self, device: str, task: TaskId, what: str) -> None:
        chapter = self._chapter(device)
        if chapter.open == task:
            chapter.open = None
            self.tell(device, what, task.round)

    def _cancelled(self, device: str, cancel: Cancel) -> None:
        task = TaskId(cancel.run, cancel.round, cancel.attempt)
        chapter = self._chapter(device)
        if cancel.unknown or task not in {chapter.open, chapter.at}:
            return
        if chapter.open == task:
            chapter.open = None
            self.cancelled.add((device, task))
        self.tell(device, "cancelled", cancel.round, cancel.reason)

    def _chapter(self, device: str) -> _Chapter:
        return self._chapters.setdefault(device, _Chapter())

    def sent_in(self, run: str) -> Iterator[tuple[str, TaskId]]:
        """The reports that devices sent in a run."""
        return ((device, task) for device, task in self.sent if task.run == run)
