"""Runs under secure aggregation with a real coordinator and real agents on a real broker, and devices that die."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from _fleet import FLEET, coordinating, devices, everyone, gathered, true
from _scripted import finished, watched

from coordinator.config import RunConfig
from coordinator.secagg.agreement import terms_of
from coordinator.secagg.exchange import Exchange
from coordinator.secagg.reduction import Masked
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from coordinator.updater import algorithm_of, numpy_of
from device_agent.data import Examples
from device_agent.secagg import Concealment
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.secagg import device, messages
from edgepfl.secagg.fixed import Words
from edgepfl.secagg.server import Stage
from edgepfl.tree import Trees
from edgepfl.wire import Report, SecAgg, Task
from simulators.broker import BrokerHandle, open_broker
from simulators.fleet import AgentFleet

PATIENCE = 120.0  # seconds; far more than anything here takes
COUNT = 5
EXAMPLES = 16  # of a device
VICTIM = "pi-001"
Outcome = TypeVar("Outcome")


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[BrokerHandle]:
    with open_broker(kind="mosquitto") as handle:
        yield handle


@pytest.fixture(scope="module")
def ditto() -> Bundle:
    """On a perceptron of 53 parameters, as another test has it, because an export takes seconds."""
    golden = Path(__file__).parents[1] / "golden" / "virtual" / "fleet.bundle"
    return unpack(golden.read_bytes(), golden=False)


def six_inputs() -> dict[str, Examples]:
    """Data for it."""
    found = {}
    for number in range(COUNT):
        source = np.random.default_rng(number)
        x = source.standard_normal((16 + number, 6), dtype=np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        found[f"pi-{number:03d}"] = Examples(x, y, x[:4], y[:4])
    return found


def settings(**fields: float | bool | str) -> RunConfig:
    usual: dict[str, Any] = {"rounds": 1, "steps": 3, "minimum": 3, "lease": 1.0, "gather": 0.2}
    config: RunConfig = everyone(COUNT, **{**usual, **fields})
    return config


class Scene:
    """A coordinator and its devices for one run."""

    def __init__(
        self, broker: BrokerHandle, folder: Path, bundle: Bundle, data: dict[str, Examples] | None = None
    ) -> None:
        self.fleet = AgentFleet(broker.url, FLEET, data or devices(COUNT), folder / "fleet", threads=2)
        self.broker, self.folder, self.bundle = broker, folder, bundle
        self.killing: list[asyncio.Task[None]] = []

    def train(self, config: RunConfig, without: tuple[str, ...] = ()) -> tuple[RunStatus, Trees, dict[str, str]]:
        """One run to its end: its status, the model, and what each device keeps, by digest."""

        async def scenario() -> tuple[RunStatus, Trees, dict[str, str]]:
            async with coordinating(self.broker.url, self.folder / "coordinator") as service, self.fleet:
                await gathered(service, COUNT)
                for name in without:
                    await self.fleet[name].stop()
                await gone(service, without)
                run = service.start_run(config, pack(self.bundle))
                status = await finished(service, run)
                kept = {r.device: r.kept for r in service.journal.results(run) if r.round == 1}
                for each in self.killing:
                    await each
                on = [agent for agent in self.fleet.agents.values() if agent.running]
                await true(lambda: all(agent.service._concealment._state is None for agent in on))  # no secret is left
                return status, numpy_of(service._active._saved.state), kept

        return play(scenario())

    def kill(self, name: str, *, again: bool = False) -> None:
        """A power cut, as soon as the loop comes to it; then perhaps it is started anew."""

        async def cut() -> None:
            await self.fleet[name].kill()
            if again:
                self.fleet[name].start()

        self.killing.append(asyncio.get_running_loop().create_task(cut()))


def play(scenario: Coroutine[Any, Any, Outcome]) -> Outcome:
    return asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def gone(service: Coordinator, names: tuple[str, ...]) -> None:
    while any(service.fleet.devices[name].present for name in names):
        await service._changed.wait()


def error_of(config: RunConfig, bundle: Bundle) -> float:
    terms = terms_of(algorithm_of(bundle.plan, config.hyper), bundle.plan, config)
    assert terms is not None
    return 2.0 ** -(terms.fraction + 1)


def assert_near(ours: Trees, plain: Trees, error: float) -> None:
    """The same to the precision of the fixed point, and to that of the float32 that both are rounded to."""
    for slot in plain:
        for name, value in plain[slot].items():
            np.testing.assert_allclose(ours[slot][name], value, rtol=2**-23, atol=error + 2**-26)


def test_fedavg_comes_to_the_same_model(
    mosquitto: BrokerHandle, tmp_path: Path, small: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, seen = Masked.offer, []

    def offering(self: Masked, report: Report, data: bytes | memoryview) -> None:
        seen.append(np.frombuffer(data, self._layout.fixed.dtype))
        offer(self, report, data)

    monkeypatch.setattr(Masked, "offer", offering)
    config = settings(rounds=2)
    status, plain, _ = Scene(mosquitto, tmp_path / "plain", small).train(config)
    hidden = settings(rounds=2, secagg=True)
    under, ours, _ = Scene(mosquitto, tmp_path / "ours", small).train(hidden)
    assert (status.status, under.status, under.why) == ("done", "done", "")
    assert_near(ours, plain, error_of(hidden, small))
    assert len(seen) == 2 * COUNT
    for upload in seen:  # the greatest number and the weight of a plain one would be small
        assert int(upload[-1]) > EXAMPLES
        assert float(np.abs(upload[:-1].view("<i8").astype(float)).max()) > 2.0**60


def test_personal_state_is_the_same_to_the_bit_and_secrets_end_with_the_round(
    mosquitto: BrokerHandle, tmp_path: Path, ditto: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_up = Concealment.take_up

    def taking_up(self: Concealment, task: Task | None) -> None:
        if task is None or task.secagg is not None:  # the last task would end them, too
            take_up(self, task)

    monkeypatch.setattr(Concealment, "take_up", taking_up)
    _, plain, kept = Scene(mosquitto, tmp_path / "plain", ditto, six_inputs()).train(settings())
    hidden = settings(secagg=True)
    _, ours, under = Scene(mosquitto, tmp_path / "ours", ditto, six_inputs()).train(hidden)
    assert kept == under
    assert len(kept) == COUNT
    assert_near(ours, plain, error_of(hidden, ditto))


@pytest.fixture(scope="module")
def without_victim(
    mosquitto: BrokerHandle, tmp_path_factory: pytest.TempPathFactory, small: Bundle
) -> tuple[Trees, Trees]:
    """What one round without secure aggregation comes to: of all but the victim, and of all."""
    folder = tmp_path_factory.mktemp("plain")
    config = settings(goal=COUNT - 1)
    _, fewer, _ = Scene(mosquitto, folder / "fewer", small).train(config, without=(VICTIM,))
    _, whole, _ = Scene(mosquitto, folder / "whole", small).train(settings())
    return fewer, whole


@pytest.mark.parametrize(
    ("last", "again"),
    [("nothing", False), ("Keys", False), ("Dealt", False), ("Dealt", True), ("report", False)],
)
def test_a_device_dies_after_it_said(
    last: str,
    again: bool,  # noqa: FBT001  whether it is started anew
    mosquitto: BrokerHandle,
    tmp_path: Path,
    small: Bundle,
    without_victim: tuple[Trees, Trees],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(mosquitto, tmp_path, small)
    dead = set[str]()
    say = Concealment._say

    def dying(self: Concealment, body: bytes) -> None:
        kind = type(messages.said(body, where="test")).__name__
        if self._device != VICTIM:
            say(self, body)
            return
        if VICTIM in dead:
            if again:
                say(self, body)
            return
        if last == "nothing" or (last == "report" and kind == "Revealed"):
            dead.add(VICTIM)
            scene.kill(VICTIM)
            return
        say(self, body)
        if kind == last:
            dead.add(VICTIM)
            scene.kill(VICTIM, again=again)

    monkeypatch.setattr(Concealment, "_say", dying)
    config = settings(secagg=True, lease=60.0 if again else 1.0)  # who comes back is not waited for
    status, ours, kept = scene.train(config)
    assert (status.status, status.why) == ("done", "")
    assert dead == {VICTIM}
    fewer, whole = without_victim
    assert (VICTIM in kept) == (last == "report")
    assert_near(ours, whole if last == "report" else fewer, error_of(config, small))


@pytest.mark.parametrize("stage", [Stage.SHARES, Stage.MASKED, Stage.UNMASKING])
def test_a_coordinator_that_is_set_down_at_a_stage_goes_on(
    stage: Stage,
    mosquitto: BrokerHandle,
    tmp_path: Path,
    small: Bundle,
    without_victim: tuple[Trees, Trees],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where devices' answers of that stage are lost with it; they answer again, and with the same."""
    due = {Stage.SHARES: "Dealt", Stage.MASKED: "", Stage.UNMASKING: "Revealed"}[stage]
    deaf, heard = [True], Exchange.heard
    held = threading.Event()  # in MASKED no device has trained yet

    def hearing(self: Exchange, message: SecAgg) -> None:
        if not deaf[0] or type(messages.said(message.body, where="test")).__name__ != due:
            heard(self, message)

    def mask(state: device.Device, vector: Words) -> tuple[device.Device, Words]:
        assert stage is not Stage.MASKED or held.wait(PATIENCE)
        return masked(state, vector)

    masked = device.mask
    monkeypatch.setattr(Exchange, "heard", hearing)
    monkeypatch.setattr(device, "mask", mask)
    config = settings(secagg=True, lease=20.0)
    scene = Scene(mosquitto, tmp_path, small)

    async def scenario() -> tuple[RunStatus, Trees]:
        state = tmp_path / "coordinator"
        async with scene.fleet:
            async with coordinating(mosquitto.url, state) as service:
                await gathered(service, COUNT)
                run = service.start_run(config, pack(small))
                await watched(service, run, lambda _: stage_of(service) is stage)
            async with coordinating(mosquitto.url, state) as service:
                deaf[0] = False
                held.set()
                assert stage_of(service) is stage
                status = await finished(service, run)
                assert service.journal.results(run)[0].round == 1
                assert service.journal.costs(run)[1].abandoned == 0
                return status, numpy_of(service._active._saved.state)

    status, ours = play(scenario())
    assert (status.status, status.why, status.secagg) == ("done", "", "")
    assert_near(ours, without_victim[1], error_of(config, small))


def stage_of(service: Coordinator) -> Stage | None:
    server = service._active.exchange._server
    return None if server is None else server.stage


def test_too_few_devices_end_the_run_with_the_reason_and_reveal_nothing(
    mosquitto: BrokerHandle, tmp_path: Path, small: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of five die after their shares are dealt: of two uploads no sum is opened."""
    scene = Scene(mosquitto, tmp_path, small)
    say, revealed = Concealment._say, []
    dying = devices(3)

    def saying(self: Concealment, body: bytes) -> None:
        kind = type(messages.said(body, where="test")).__name__
        revealed.extend([self._device] if kind == "Revealed" else [])
        say(self, body)
        if kind == "Dealt" and self._device in dying:
            scene.kill(self._device)

    monkeypatch.setattr(Concealment, "_say", saying)
    status, _, _ = scene.train(settings(secagg=True, attempts=1, gather=1.0))
    assert status.status == "failed"
    assert not revealed
    assert "secure aggregation" in status.why or "2 reports" in status.why
