"""The wristband's network, trained by an emulated fleet while one band's battery dies."""

from __future__ import annotations

import pytest
from wristband.net import GestureNet
from wristband.recordings import recordings

from simulators.pytest_plugin.fleet import Fleet
from simulators.pytest_plugin.making import FleetMaker


@pytest.fixture(scope="module")
def trained(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(
        pytest.mark.faults("kill", devices=["device-003"], during=2, until=1),
        model=GestureNet,
        data=recordings,
        agents=5,
        rounds=3,
        steps=20,
        gather=60,
        settings={"lr": 0.5},
        profiles={"pi-4": 0.6, "pi-5": 0.4},
        seed=11,
    )


def test_every_wearer_is_served_well(trained: Fleet) -> None:
    assert trained.report.worst_decile > 0.8
    assert trained.lost == 0
    assert trained.bytes_per_round < 100_000
    assert trained.report.accuracy["global"].keys() == {f"device-{number:03}" for number in range(5)}


def test_the_band_that_died_came_back(trained: Fleet) -> None:
    band = trained.device("device-003")
    assert band.told("power cut")
    assert [each.what for each in band.story].count("connected") > 1
    assert band.accuracy["global"] > 0.8


def test_that_is_meant_to_fail(trained: Fleet) -> None:
    assert not trained.device("device-003").told("power cut")
