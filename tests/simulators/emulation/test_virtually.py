"""An emulation in virtual time: what it refuses, and what its log says of reports and places."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config import RunConfig
from edgepfl.errors import ConfigError
from simulators.emulation import virtually
from simulators.emulation.emulation import emulate
from simulators.emulation.scenario import Fault, FleetTable, Scenario
from simulators.virtual import Entry
from simulators.virtual.log import EventLog, read


def test_a_fault_that_virtual_time_does_not_know_is_refused_before_graphs_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtually, "bundle_of", lambda *_: pytest.fail("graphs were built"))
    fault = Fault(kind="kill", devices=1, during=2)
    scenario = Scenario(time="virtual", fleet=FleetTable(agents=2), faults=(fault,))
    with pytest.raises(ConfigError, match="'during' of a fault"):
        virtually.emulate_virtually(scenario, tmp_path, None, None, lambda _: None)


def test_a_report_of_an_abandoned_attempt_is_not_one_that_can_be_lost() -> None:
    log = [
        *(Entry(0, who, "selected", 3) for who in "ab"),
        Entry(1, "a", "report", 3),
        Entry(1, "b", "report", 3),
        Entry(2, "a", "dropped", 3),  # the attempt came to nothing
        Entry(2, "b", "dropped", 3),
        Entry(2, "a", "selected", 3),
        Entry(3, "a", "report", 3),
        Entry(3, "b", "report", 3),  # the old one, again
        Entry(4, "coordinator", "committed", 3),
        Entry(4, "a", "accepted", 3),
        Entry(5, "c", "task again", 4),
        Entry(5, "c", "report", 4),
        Entry(6, "coordinator", "committed", 4),
        Entry(6, "c", "dropped", 4, "nothing came of it"),
    ]
    assert virtually.sent(log) == {("a", 3), ("c", 4)}


def test_no_entry_depends_on_where_the_state_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        log = EventLog(lambda: 1.5, tmp_path / f"{place}.log", tmp_path / place)
        log.say("a", "failed", 1, f"{tmp_path / place}/devices/a/fetched: a blob does not fit")
        log.close()
    assert (tmp_path / "here.log").read_bytes() == (tmp_path / "there.log").read_bytes()
    assert read(tmp_path / "here.log")[0].detail == "devices/a/fetched: a blob does not fit"


def test_a_fault_after_the_end_of_virtual_time_is_told(tmp_path: Path) -> None:
    faults = (Fault(kind="cut", devices=1, at=0.001), Fault(kind="cut", devices=1, at=86399.0))
    scenario = Scenario(time="virtual", fleet=FleetTable(agents=2), run=RunConfig(rounds=1, goal=2), faults=faults)
    assert emulate(scenario, tmp_path).missed == ("cut at = 86399: the run was over before",)
