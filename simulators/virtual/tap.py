"""An ear at the broker: turns the messages of a fleet into events of the log."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from edgepfl import wire
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.topics import ROOT, FromDevice, ToAll, ToDevice, Topics
from edgepfl.wire import (
    Cancel,
    Commit,
    Failed,
    Gone,
    Hello,
    Message,
    Progress,
    Refused,
    Report,
    RollCall,
    Stopped,
    Task,
)
from simulators.virtual.pace import Say

COORDINATOR = "coordinator"
_KINDS = (Hello, Gone, Report, Failed, Progress, Stopped, Task, Commit, Cancel, RollCall, Refused)


@dataclass
class _Open:
    """An attempt at a round, and why the report of each member would not count."""

    attempt: int
    members: dict[str, str] = field(default_factory=dict)


class Tap(LoopbackBus):
    """Hears everything, in the order of the broker.

    Args:
        broker: where to listen.
        fleet: whose messages.
        say: told of each event.
        ended: called when the coordinator has told everyone something: the run may have ended.
    """

    def __init__(self, broker: LoopbackBroker, fleet: str, say: Say, ended: Callable[[], object]) -> None:
        super().__init__(broker, "tap")
        self._topics = Topics(fleet)
        self._say = say
        self._ended = ended
        self._open: dict[tuple[str, int], _Open] = {}  # by run and round
        self._paused: dict[str, str] = {}
        self._kinds = {kind.KIND for kind in _KINDS}
        self.subscribe(f"{ROOT}/{fleet}/#")

    def offer(self, topic: str, payload: bytes) -> None:
        """Hear a message."""
        address = self._topics.parse(topic)
        match address:
            case FromDevice(device, kind) if kind in self._kinds:
                self._from(device, wire.decode(payload, where=topic))
            case ToDevice(device, kind) if kind in self._kinds:
                self._to(device, wire.decode(payload, where=topic))
            case ToAll():
                self._to_all(wire.decode(payload, where=topic))
                self._ended()
            case _:
                pass

    def _from(self, device: str, message: Message) -> None:
        match message:
            case Hello(unmet=unmet):
                self._say(device, "hello", 0, ", ".join(unmet or ()))
            case Gone():
                self._say(device, "gone", 0, "")
                self._note(device, "it left")
            case Report(round=round_, steps=steps):
                self._say(device, "report", round_, f"{steps} steps")
                self._note(device, "its report came too late")
            case Failed(round=round_, code=code, detail=detail):
                self._say(device, "failed", round_, f"{code}: {detail}")
                self._note(device, f"it failed ({code})")
            case Progress(round=round_, paused=paused):
                self._progress(device, round_, paused or "")
            case Stopped(round=round_):
                self._say(device, "stopped", round_, "")
            case _:
                pass

    def _progress(self, device: str, round_: int, paused: str) -> None:
        """That it works is no news, but when it pauses and goes on."""
        before = self._paused.pop(device, "")
        if paused:
            self._paused[device] = paused
        if paused and not before:
            self._say(device, "paused", round_, paused)
        elif before and not paused:
            self._say(device, "resumed", round_, "")

    def _to(self, device: str, message: Message) -> None:
        match message:
            case Task():
                self._task(message)
            case Cancel(round=round_, reason=why):
                self._say(device, "cancelled", round_, why)
                self._note(device, why)
            case Commit(round=round_, accepted=accepted):
                self._say(device, "answered", round_, "it counts" if device in accepted else "it does not count")
            case Refused(why=why):
                self._say(device, "refused", 0, why)
            case _:
                pass

    def _to_all(self, message: Message) -> None:
        match message:
            case Task(round=round_, cohort=cohort):
                self._say(COORDINATOR, "round", round_, f"{len(cohort)} devices")
                self._task(message)
            case Commit():
                self._commit(message)
            case RollCall(conditions=conditions):
                self._say(COORDINATOR, "roll call", 0, "" if conditions is None else "with conditions")
            case _:
                pass

    def _task(self, task: Task) -> None:
        """A cohort, or more of it, or one member anew."""
        place = task.run, task.round
        before = self._open.get(place)
        if before is not None and before.attempt != task.attempt:
            self._drop(before, task.round, ())
        if before is None or before.attempt != task.attempt:
            before = self._open[place] = _Open(task.attempt)
        for member in task.cohort:
            again = member.device in before.members
            self._say(member.device, "task again" if again else "selected", task.round, "")
            before.members.setdefault(member.device, "nothing came of it")

    def _commit(self, commit: Commit) -> None:
        self._say(COORDINATOR, "committed", commit.round, f"{len(commit.accepted)} reports")
        for device in commit.accepted:
            self._say(device, "accepted", commit.round, "")
        if (ended := self._open.pop((commit.run, commit.round), None)) is not None:
            self._drop(ended, commit.round, commit.accepted)

    def _drop(self, ended: _Open, round_: int, accepted: Collection[str]) -> None:
        for device, why in ended.members.items():
            if device not in accepted:
                self._say(device, "dropped", round_, why)

    def _note(self, device: str, why: str) -> None:
        """Why a member's report may not count."""
        for each in self._open.values():
            if device in each.members:
                each.members[device] = why
