"""Small fleets over a real broker, with a coordinator of their own and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_agent.runners.library import NAME, default_folder
from edgepfl.errors import ConfigError, RunError
from edgepfl.validation import in_file
from simulators.broker import open_broker
from simulators.emulation import Emulation, EmulationReport, Given, Scenario, emulate
from simulators.emulation.scenario import Fault
from simulators.emulation.scenario_file import scenario_of
from simulators.emulation.shards import Shard, lead
from simulators.processes import Command

pytestmark = pytest.mark.usefixtures("graphs_once")

AGENTS = 10
PATIENCE = 120.0


def scenario(*faults: Mapping[str, Any], agents: int = AGENTS, **tables: Any) -> Scenario:  # noqa: ANN401  as TOML has them
    """A small fleet with a small model, and an evaluation at the end."""
    table = {
        "name": "test",
        "seed": 3,
        "fleet": {"agents": agents},
        "work": {"model": "mlp-9k", "algorithm": "ditto"},
        "faults": list(faults),
        **tables,
    }
    return scenario_of(table, in_file("test"), folder=Path())


def words(report: EmulationReport, device: str) -> list[tuple[str, int]]:
    """A device's story without its times and details, from the run's start on."""
    return [(told.what, told.round) for told in report.stories[device] if told.at >= 0]


def accepted(report: EmulationReport, device: str) -> list[int]:
    return [round_ for what, round_ in words(report, device) if what == "accepted"]


def test_a_calm_fleet_loses_nothing_and_gives_the_same_bits_again(tmp_path: Path) -> None:
    calm = scenario()
    first = emulate(calm, tmp_path / "first")
    assert (first.status, first.rounds, first.lost, first.abandoned) == ("done", 4, 0, 0)
    assert first.reports == dict.fromkeys((1, 2, 3, 4), AGENTS)
    assert sorted(first.seconds) == [1, 2, 3]
    one = [("task", 1), ("report", 1), ("accepted", 1)]
    assert words(first, "device-004")[:3] == one
    assert set(first.accuracy) == {"global", "personal"}
    assert 0.0 <= first.worst_decile <= first.mean <= 1.0
    assert first.fleet_bytes_in > AGENTS * first.parameters
    assert set(first.pss_mib) == {"fleet", "coordinator", "broker"}
    again = emulate(calm, tmp_path / "again")
    assert again.state_sha256 == first.state_sha256
    assert again.accuracy == first.accuracy


def test_faults_of_devices(tmp_path: Path) -> None:
    """Each kind once, to a device of its own; the others go on, and nothing is lost."""
    run = {"rounds": 4, "minimum": 5, "lease": 10, "gather": 2}
    found = emulate(
        scenario(
            {"kind": "kill", "devices": ["device-000"], "during": 2, "until": 1.0},
            {"kind": "cut", "devices": ["device-001"], "during": 2},
            {"kind": "silence", "devices": ["device-002"], "during": 2},
            {"kind": "nan", "devices": ["device-003"]},
            {"kind": "quota", "devices": ["device-004"], "values": {"mib": 0.01}},
            {"kind": "clone", "devices": ["device-005"], "after": 1},
            {"kind": "late", "devices": ["device-006"], "after": 1},
            {"kind": "link", "devices": ["device-007"], "values": {"rate": 200000, "delay": 0.01}},
            {"kind": "clock", "devices": ["device-008"], "values": {"stuck": "1970-01-01T00:00:00"}},
            fleet={"agents": AGENTS, "keepalive": 2},  # the silent one notices before the run is over
            run=run,
            work={"model": "mlp-9k"},
        ),
        tmp_path / "faults",
    )
    assert (found.status, found.rounds, found.lost, found.abandoned) == ("done", 5, 0, 0)
    assert found.missed == ()
    assert ("power cut", 0) in words(found, "device-000")
    assert accepted(found, "device-000")[-1] == 5  # it came back
    assert ("disconnected", 0) in words(found, "device-001")
    assert 2 in accepted(found, "device-001")
    assert ("silence", 0) in words(found, "device-002")
    assert {1, 5} <= set(accepted(found, "device-002"))  # a new connection works
    assert accepted(found, "device-003") == accepted(found, "device-004") == []
    assert found.refused["report"] >= 3
    assert any("not finite" in told.detail for told in found.stories["device-003"])
    assert any("does not fit" in told.detail for told in found.stories["device-004"])
    assert set(found.quarantined) == {"device-003", "device-004"}
    assert list(found.doubled) == ["device-005"]
    assert any(told.what == "ended" for told in found.stories["device-005#2"])
    assert {1, 5} <= set(accepted(found, "device-005"))  # the clone may throw it out for a round, and is sent away
    assert accepted(found, "device-006")[0] > 1
    assert accepted(found, "device-007") == accepted(found, "device-008") == [1, 2, 3, 4, 5]


def test_servers_are_killed_and_the_model_is_the_same(tmp_path: Path) -> None:
    run = {"rounds": 4, "lease": 20}
    calm = emulate(scenario(run=run), tmp_path / "calm")
    killed = emulate(
        scenario({"kind": "broker", "after": 1, "until": 0.5}, {"kind": "coordinator", "during": 3}, run=run),
        tmp_path / "killed",
    )
    assert (killed.status, killed.lost, killed.abandoned, killed.missed) == ("done", 0, 0, ())
    assert any(told.what == "disconnected" and told.at > 0 for told in killed.stories["device-000"])
    assert killed.state_sha256 == calm.state_sha256


def test_an_attempt_without_enough_reports_is_abandoned_and_made_again(tmp_path: Path) -> None:
    run = {"rounds": 3, "lease": 1, "gather": 1}
    found = emulate(
        scenario(
            {"kind": "kill", "devices": 1, "during": 2, "until": 6},
            {"kind": "cut", "devices": 1, "at": 9999},
            agents=4,
            run=run,
        ),
        tmp_path / "a",
    )
    assert found.missed == ("cut at = 9999: the run was over before",)
    killed = [device for device in found.stories if ("power cut", 0) in words(found, device)]
    assert len(killed) == 1
    assert found.status == "done"
    assert found.abandoned >= 1
    assert found.lost == 0  # what the others had done in vain was abandoned, not lost
    assert any("more needed" in wait for wait in found.waits)
    assert found.reports == dict.fromkeys((1, 2, 3, 4), 4)


@pytest.mark.skipif(not (default_folder() / NAME).exists(), reason="the ExecuTorch runner is not built here")
def test_boards_and_phones_train_one_model(tmp_path: Path) -> None:
    fleet = {"agents": 6, "profiles": {"pi-4": 0.5, "phone-mid": 0.5}}
    found = emulate(scenario(fleet=fleet, run={"rounds": 2}), tmp_path / "mixed")
    assert (found.status, found.lost) == ("done", 0)
    assert found.reports == dict.fromkeys((1, 2, 3), 6)
    assert set(found.joules) == set(found.stories)
    assert min(found.joules.values()) > 0


def test_held_open_a_test_may_look_and_interfere(tmp_path: Path) -> None:
    async def play() -> EmulationReport:
        small = scenario(agents=4, run={"rounds": 1000, "minimum": 3, "lease": 5, "gather": 0.5})
        async with Emulation(small, tmp_path / "open") as emulation:
            assert emulation.devices == tuple(f"device-00{number}" for number in range(4))
            with pytest.raises(RunError, match="not started"):
                await emulation.wait_for(1)
            await emulation.start()
            await emulation.wait_for(1, PATIENCE)
            await emulation.kill("device-001")
            status = await emulation.wait_for((emulation.report().rounds or 1) + 2, PATIENCE)
            assert status.round >= 3
            await emulation.revive("device-001")
            await emulation.cut("device-002")
            await emulation.inflict(Fault(kind="nan", devices=("device-003",)))
            with pytest.raises(ConfigError, match="no device is called 'pi'"):
                await emulation.inflict(Fault(kind="kill", devices=("pi",)))
            await emulation.wait_for(emulation.report().rounds + 2, PATIENCE)
            await emulation.stop()
            return await emulation.finish(PATIENCE)

    found = asyncio.run(play())
    assert found.status == "stopped"
    story = [what for what, _ in words(found, "device-001")]
    assert story.index("power cut") < story.index("power on") < len(story) - story[::-1].index("connected")
    assert any(told.what == "disconnected" for told in found.stories["device-002"])
    assert found.lost == 0


def test_two_shards_share_a_fleet(tmp_path: Path) -> None:
    with open_broker() as broker:
        shared = msgspec.structs.replace(scenario(run={"rounds": 2}), broker=broker.url)
        options = ["--agents", str(AGENTS), "--algorithm", "ditto", "--model", "mlp-9k", "--rounds", "2", "--seed", "3"]
        other = Command(["emulate", *options, "--broker", broker.url, "--shard", "2/2"], tmp_path / "other.log")
        with other:
            found = lead(shared, tmp_path / "first", Shard(1, 2), Given(), lambda _: None)
    assert (found.status, found.lost, found.abandoned) == ("done", 0, 0)
    assert found.reports == dict.fromkeys((1, 2, 3), AGENTS)
    assert len(found.stories) == AGENTS
    assert all(accepted(found, device) == [1, 2, 3] for device in found.stories)
    assert {"fleet", "fleet 2"} <= found.pss_mib.keys()
    alone = emulate(scenario(run={"rounds": 2}), tmp_path / "alone")
    assert alone.state_sha256 == found.state_sha256
