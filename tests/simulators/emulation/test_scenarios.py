"""The scenarios that come along: each holds, with real agents over a real broker, and each could fail."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgepfl.eligibility import Conditions
from simulators.emulation import EmulationReport, Scenario, emulate
from simulators.emulation.expectations import failures
from simulators.emulation.scenario import Expectations, Fault, without_faults
from simulators.emulation.scenario_file import catalogue, find, names

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("graphs_once")]

TEN = (
    "below-minimum",
    "broker-restart",
    "clock-1970",
    "clone",
    "coordinator-killed",
    "dead-device",
    "nan-update",
    "nat",
    "quota-full",
    "slow-uplink",
)


def ran(scenario: Scenario, folder: Path) -> tuple[EmulationReport, tuple[str, ...]]:
    """What came of a scenario, and what of it came otherwise than expected."""
    folder.mkdir(parents=True, exist_ok=True)
    report = emulate(scenario, folder)
    bare = without_faults(scenario)
    faultless = emulate(bare, _made(folder / "faultless")) if scenario.expect.same_model else None
    return report, failures(report, scenario.expect, faultless=faultless)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_ten_come_along_and_each_says_what_it_is_about() -> None:
    assert names() == TEN
    for about in catalogue().values():
        assert "Elsewhere" in about
        assert "#" in about or "pull request" in about


@pytest.mark.parametrize("name", TEN)
def test_a_scenario_holds(name: str, tmp_path: Path) -> None:
    _, found = ran(find(name), tmp_path / "run")
    assert not found, "\n".join(found)


# Of each scenario, what holds only because the product keeps its promise: without its fault it must fail.
SHOWS = {
    "below-minimum": "told",
    "clock-1970": "uncounted",
    "clone": "doubled",
    "dead-device": "told",
    "nan-update": "refused",
    "nat": "told",
    "quota-full": "told",
}


@pytest.mark.parametrize("name", ["nan-update"])
def test_without_its_fault_a_scenario_that_shows_one_fails(name: str, tmp_path: Path) -> None:
    scenario = find(name)
    calm = msgspec.structs.replace(without_faults(scenario), expect=scenario.expect)
    _, found = ran(calm, tmp_path / "run")
    assert any(each.startswith(SHOWS[name]) for each in found)


def test_a_board_without_a_clock_trains_where_no_window_is_asked(tmp_path: Path) -> None:
    scenario = find("clock-1970")
    run = msgspec.structs.replace(scenario.run, conditions=None)
    expect = Expectations(rounds=3, lost=0, counted={"device-00[0123]": 3})
    _, found = ran(msgspec.structs.replace(scenario, run=run, expect=expect), tmp_path / "run")
    assert not found, "\n".join(found)
    assert scenario.run.conditions == Conditions(windows=("00:00-00:00",))


def test_a_run_whose_device_never_comes_back_fails_with_that_reason(tmp_path: Path) -> None:
    scenario = find("below-minimum")
    run = msgspec.structs.replace(scenario.run, attempts=1, lease=1.0)
    gone = Fault(kind="leave", devices=("device-003",), during=1)
    told = ("3 reports, at least 4 needed", "device-003: no sign of life")
    expect = Expectations(status="failed", abandoned=1, told=told)
    report, found = ran(msgspec.structs.replace(scenario, run=run, faults=(gone,), expect=expect), tmp_path / "run")
    assert not found, "\n".join(found)
    assert "device-003" in report.why
