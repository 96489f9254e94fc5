"""Agents train and are tested on what their data are in the round of the task."""

from __future__ import annotations

from pathlib import Path

import pytest
from _bundles import CLASSES, ditto_bundle
from _hand import agent, hand, play
from _hand import examples as given

from device_agent.data import Examples
from device_agent.runners.onnx import OnnxRunner
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import Report
from simulators.datasets import Drift
from simulators.datasets.drift import Drifting, drifting
from simulators.federation import InProcess, Setting

DRIFT = Drift.parse("labels:abrupt,start=2")


def of(round_: int, number: int = 0) -> Examples:
    return drifting(DRIFT, given(), CLASSES, number, round_, seed=1)


def moving(number: int = 0) -> Drifting:
    return Drifting.of(given(), lambda round_: of(round_, number))


def reports(folder: Path, data: Examples) -> list[Report]:
    """Rounds 1 and 2, each from the first model: only the data can make a difference beside the round's own seed."""
    found: list[Report] = []

    async def scenario() -> None:
        broker, bundle = LoopbackBroker(), ditto_bundle(hidden=8)
        async with hand(broker, folder, bundle) as coordinator, agent(broker, folder / "device", data=data):
            for round_ in (1, 2):
                task = coordinator.task(round_=round_, evaluate=True, tune_steps=1)
                found.append(await coordinator.work(task))

    play(scenario())
    return found


@pytest.mark.timeout(120)
def test_an_agent_trains_on_the_rounds_own_examples(tmp_path: Path) -> None:
    drifted, before, after = (
        reports(tmp_path / name, data) for name, data in (("a", moving()), ("b", given()), ("c", of(2)))
    )
    assert drifted[0].kept == before[0].kept != after[0].kept
    assert drifted[1].kept == after[1].kept != before[1].kept
    assert drifted[1].metrics == after[1].metrics
    assert drifted[1].examples == before[1].examples


def test_a_federation_in_one_process_does_so_too() -> None:
    bundle = ditto_bundle(hidden=8)
    runner = OnnxRunner(bundle)
    names = ["a", "b", "c"]
    fleets = [
        InProcess(bundle, runner, {name: make(number) for number, name in enumerate(names)}, Setting())
        for make in (moving, lambda _: given())
    ]
    first = [fleet.round(names).state for fleet in fleets]
    assert all((first[0]["w"][name] == first[1]["w"][name]).all() for name in first[0]["w"])
    expected = InProcess(bundle, runner, {name: of(2, number) for number, name in enumerate(names)}, Setting())
    expected.server, expected.kept, expected.history = fleets[0].server, dict(fleets[0].kept), list(fleets[0].history)
    assert fleets[0].evaluate("a").metrics == expected.evaluate("a").metrics != fleets[1].evaluate("a").metrics
    second, other = fleets[0].round(names).state, expected.round(names).state
    assert all((second["w"][name] == other["w"][name]).all() for name in second["w"])
    assert any((second["w"][name] != fleets[1].round(names).state["w"][name]).any() for name in second["w"])
