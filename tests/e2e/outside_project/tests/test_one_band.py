"""One band as a process of its own: what it computes, what it takes, and whether it survives."""

from __future__ import annotations

import pytest
from wristband.net import GestureNet
from wristband.recordings import recordings

from simulators.pytest_plugin.board import Board
from simulators.pytest_plugin.service import CoordinatorService


@pytest.mark.board(profile="pi-4", data=recordings, name="band-7")
def test_a_band_survives_power_cuts_and_the_coordinator_too(board: Board, coordinator: CoordinatorService) -> None:
    bundle = coordinator.bundle(GestureNet, recordings("band-7"), settings={"lr": 0.5})
    assert board.doctor(bundle).ok
    coordinator.start(bundle, rounds=4)
    coordinator.wait_for(1)
    board.kill()
    coordinator.kill()
    coordinator.restart()
    board.restart()
    status = coordinator.finish()
    assert status.metrics["accuracy.global"] > 0.8
    assert 10 < board.memory_mib < 80
