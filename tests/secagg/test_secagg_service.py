"""The coordinator's side of the exchange, with devices whose every word is the test's, in the test's time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _exchange import seeded
from _scripted import Clock, Hand, config, coordinating, finished, play, ref_of, seat_of, serving, upload_of, watched

from coordinator.blame import SECAGG
from coordinator.config import RunConfig
from coordinator.secagg import reduction
from coordinator.service import Coordinator
from coordinator.updater import numpy_of
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus import Connected
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Role
from edgepfl.secagg import device, messages
from edgepfl.secagg.device import Device
from edgepfl.secagg.masks import context
from edgepfl.secagg.messages import Ask, Body
from edgepfl.secagg.server import Stage
from edgepfl.secagg.vector import Layout
from edgepfl.tree import Trees
from edgepfl.wire import Cancel, Progress, RollCall, SecAgg, Task

pytestmark = pytest.mark.usefixtures("impatient")
NAMES = ("ant", "bee", "cat", "dog")
EXAMPLES = 5


class Masked(Hand):
    """A device that does its part, but for some words that it never says."""

    def __init__(self, broker: LoopbackBroker, name: str, plan: Plan, dumb: Collection[type[Body]] = ()) -> None:
        super().__init__(broker, name)
        self._plan, self._dumb = plan, tuple(dumb)
        self._draw = seeded(NAMES.index(name))
        self._state: Device | None = None
        self.task: Task | None = None
        self.told: list[messages.Told] = []
        self.cancelled: list[str] = []
        self.spoilt = 0  # bytes that its upload is too short

    async def serve(self) -> None:
        while True:
            message = await self.heard()
            match message:
                case Connected() | RollCall():
                    self.hello()
                case Task() if any(member.device == self.name for member in message.cohort):
                    self._begin(message)
                case SecAgg():
                    self._hear(message)
                case Cancel():
                    self.cancelled.append(message.reason)

    def alive(self) -> None:
        if self.task is not None:
            self.say(Progress(self.name, 1, self.task.run, self.task.round, self.task.attempt, 3))

    def plain(self) -> Trees:
        assert self.task is not None
        expected = {name: slot.tensors for name, slot in self._plan.by_role(Role.UP).items()}
        return codec.decode(upload_of(self._plan, self.task, self.name), expected)

    def _begin(self, task: Task) -> None:
        if task.secagg is None:
            self.say(self.report(task, None))
        elif self.task is None:
            self.task = task
            about = context(task.run, task.round, task.attempt)
            self._state, said = device.begin(self.name, about, self._draw)
            self._do(said)

    def _hear(self, message: SecAgg) -> None:
        told = messages.told(message.body, where="test")
        self.told.append(told)
        if self._state is not None:
            self._state, what = device.advance(self._state, told, self._draw)
            self._do(what)

    def _do(self, what: device.Do) -> None:
        assert self.task is not None
        match what:
            case device.Say(body) | device.Reveal(body) if not isinstance(body, self._dumb):
                task = self.task
                self.say(SecAgg(self.name, task.run, task.round, task.attempt, messages.encode(body)))
            case device.Ready():
                self._report(self.task)
            case device.Refuse(why):
                raise AssertionError(why)

    def _report(self, task: Task) -> None:
        assert task.secagg is not None
        assert self._state is not None
        vector = Layout.of(task.secagg, self._plan).encode(self.plain(), EXAMPLES)
        self._state, hidden = device.mask(self._state, vector)
        self.say(self.report(task, ref_of(hidden.tobytes()[self.spoilt :]), examples=EXAMPLES))


def settings(**fields: Any) -> RunConfig:  # noqa: ANN401  whatever RunConfig takes
    return config(**{"secagg": True, "rounds": 1, "goal": 4, "minimum": 3, "attempts": 1, **fields})


async def pass_time(service: Coordinator, clock: Clock, devices: Collection[Masked], leases: float) -> None:
    """Time passes in small steps, in which everyone gives a sign of life."""
    lease = 10.0
    for _ in range(round(leases * 10)):
        clock.now += lease / 10
        for each in devices:
            each.alive()
        await asyncio.sleep(0.005)
        if not service._active.ended:
            service._active.tick()


def stage_of(service: Coordinator) -> Stage | None:
    server = service._active.exchange._server
    return None if server is None else server.stage


def mean(devices: Collection[Masked]) -> dict[str, Any]:
    trees = [each.plain()["delta"] for each in devices]
    return {name: np.mean([tree[name] for tree in trees], axis=0) for name in trees[0]}


@pytest.mark.parametrize(("dumb", "stage"), [(messages.Keys, Stage.KEYS), (messages.Dealt, Stage.SHARES)])
def test_who_works_and_does_not_answer_is_asked_again_then_left_out(
    dumb: type[Body], stage: Stage, small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        devices = [Masked(broker, name, small.plan, [dumb] if name == "dog" else ()) for name in NAMES]
        async with coordinating(broker, tmp_path, clock) as service, serving(*devices):
            run = service.start_run(settings(), pack(small))
            found = await watched(
                service,
                run,
                lambda status: (
                    status.secagg.startswith("keys of 3")
                    or (stage_of(service) is Stage.SHARES and "shares of 3 of 4" in status.secagg)
                ),
            )
            assert stage_of(service) is stage
            assert f"secure aggregation: {'keys' if stage is Stage.KEYS else 'shares'} of 3 of 4" in found.waiting
            start = numpy_of(service._active._saved.state)["w"]
            await pass_time(service, clock, devices, 1.8)
            assert stage_of(service) is stage
            assert devices[3].told
            assert (Ask() in devices[3].told) == (stage is Stage.KEYS)
            assert len(devices[3].told) >= 4  # reminded
            await pass_time(service, clock, devices, 0.6)
            await watched(service, run, lambda status: status.round >= 1)
            assert f"its {stage} are missing" in devices[3].cancelled[0]
            cost = service.journal.costs(run)[1]
            assert cost.without.failed == {"dog": f"it does not answer: its {stage} are missing"}
            assert service.journal.conduct(run) == {}  # no fault of the device
            for name, step in mean(devices[:3]).items():
                after = numpy_of(service._active._saved.state)["w"][name]
                np.testing.assert_allclose(after, start[name] + step, rtol=1e-6, atol=1e-7)

    play(scenario())


def test_where_too_few_help_to_open_the_sum_the_attempt_is_given_up(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        dumb = ("bee", "cat", "dog")
        devices = [Masked(broker, name, small.plan, [messages.Revealed] if name in dumb else ()) for name in NAMES]
        async with coordinating(broker, tmp_path, clock) as service, serving(*devices):
            run = service.start_run(settings(), pack(small))
            found = await watched(service, run, lambda status: status.secagg.startswith("the masks come off: 1 of 4"))
            assert found.phase == "reducing"
            await pass_time(service, clock, devices, 2.2)
            status = await finished(service, run)
            assert status.status == "failed"
            assert "too few devices helped to open the sum; silent are bee, cat, dog" in status.why
            assert status.round == 0

    play(scenario())


def test_a_run_can_be_stopped_while_masks_come_off(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        devices = [Masked(broker, name, small.plan, [messages.Revealed]) for name in NAMES]
        async with coordinating(broker, tmp_path) as service, serving(*devices):
            run = service.start_run(settings(), pack(small))
            await watched(service, run, lambda status: status.secagg.startswith("the masks come off"))
            service.stop_run(run)
            status = await finished(service, run)
            assert (status.status, status.round) == ("stopped", 0)
            assert service.start_run(settings(name="again"), pack(small)) != run
        assert not service._jobs

    play(scenario())


def test_a_masked_upload_of_another_length_is_refused(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        devices = [Masked(broker, name, small.plan) for name in NAMES]
        devices[0].spoilt = 8
        async with coordinating(broker, tmp_path, clock) as service, serving(*devices):
            run = service.start_run(settings(), pack(small))
            await watched(service, run, lambda status: status.round >= 1)
            failed = service.journal.costs(run)[1].without
            assert "a masked upload of 184 bytes, and 192 are due" in str(failed)

    play(scenario())


def test_what_is_not_of_the_attempt_or_of_its_members_means_nothing(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        devices = [Masked(broker, name, small.plan, [messages.Keys] if name == "dog" else ()) for name in NAMES]
        async with coordinating(broker, tmp_path, clock) as service, serving(*devices):
            run = service.start_run(settings(), pack(small))
            await watched(service, run, lambda status: status.secagg.startswith("keys of 3"))
            keys = messages.encode(device.begin("dog", b"", seeded(1))[0].keys)
            dog = devices[3]
            for word in (
                SecAgg("dog", run, 1, 1, keys),
                SecAgg("dog", run, 2, 0, keys),
                SecAgg("dog", "run-2", 1, 0, keys),
                SecAgg("dog", run, 1, 0, b"nothing"),
                SecAgg("dog", run, 1, 0, messages.encode(Ask())),
                SecAgg("cat", run, 1, 0, keys),  # it speaks for another
            ):
                dog.say(word)
            dog.alive()
            await watched(service, run, lambda _: seat_of(service, "dog").steps == 3)  # it was heard after all these
            assert stage_of(service) is Stage.KEYS
            assert len(service._active.exchange._server.keys) == 3  # type: ignore[union-attr]  # it is there
            assert SECAGG == "secagg"

    play(scenario())


def test_without_it_nothing_of_it_is_there(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path) as service:
            run = service.start_run(settings(secagg=False), pack(small))
            assert service.status(run).secagg == ""
            service.stop_run(run)
            with pytest.raises(ConfigError, match="looks at each device's own upload"):
                service.start_run(settings(robust="median"), pack(small))

    monkeypatch.delattr(reduction.Masked, "offer")
    play(scenario())
