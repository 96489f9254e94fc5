"""An emulation in virtual time: what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepfl.errors import ConfigError
from simulators.emulation import virtually
from simulators.emulation.scenario import Fault, FleetTable, Scenario


def test_a_fault_that_virtual_time_does_not_know_is_refused_before_graphs_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtually, "bundle_of", lambda *_: pytest.fail("graphs were built"))
    fault = Fault(kind="kill", devices=1, during=2)
    scenario = Scenario(time="virtual", fleet=FleetTable(agents=2), faults=(fault,))
    with pytest.raises(ConfigError, match="'during' of a fault"):
        virtually.emulate_virtually(scenario, tmp_path, None, None, lambda _: None)
