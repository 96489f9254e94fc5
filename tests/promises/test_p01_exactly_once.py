"""Promise 1: an update counts exactly once per round and device.

Every report is sent one to five times, all of a round shuffled, a tenth of the copies a round too late, and of a tenth
of the devices all copies.  In full 200 devices train 20 rounds (``EDGEPFL_SOAK=1``), else 40 train 6.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from _p01 import Play, oracle, stored

from edgepfl.bundle import Bundle
from edgepfl.bus import Bus
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from simulators.broker import BrokerHandle

SOAK = bool(os.environ.get("EDGEPFL_SOAK"))
DEVICES, ROUNDS = (200, 20) if SOAK else (40, 6)
SEED = int(os.environ.get("EDGEPFL_SEED", "20"))
LIMIT = 600.0  # seconds, far more than it takes

pytestmark = [pytest.mark.promise(1), pytest.mark.usefixtures("impatient"), pytest.mark.timeout(LIMIT)]


@pytest.mark.broker
def test_every_report_counts_once_however_often_and_late_it_comes(
    tmp_path: Path, small: Bundle, transport: BrokerHandle | LoopbackBroker
) -> None:
    def bus(name: str) -> Bus:
        if isinstance(transport, LoopbackBroker):
            return LoopbackBus(transport, name)
        return MqttBus(MqttSettings(transport.url, name))

    print(f"EDGEPFL_SEED={SEED}")  # noqa: T201  a failure can be played again
    play = Play(bus, small, DEVICES, SEED)
    outcome = asyncio.run(asyncio.wait_for(play.run(tmp_path / "state", ROUNDS), LIMIT))
    assert outcome.counted == sorted(outcome.expected)
    assert outcome.sent > 2 * DEVICES * ROUNDS
    assert len(outcome.counted) < DEVICES * (ROUNDS + 1)  # some were too late
    found, expected = stored(tmp_path / "state", outcome.state)["w"], oracle(play)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])  # to the bit


def test_the_bits_do_not_depend_on_how_often_and_in_which_order(tmp_path: Path, small: Bundle) -> None:
    outcomes = []
    for order in range(2):
        broker = LoopbackBroker()
        play = Play(partial(LoopbackBus, broker), small, 8, SEED, order)
        outcomes.append(asyncio.run(asyncio.wait_for(play.run(tmp_path / str(order), 3), LIMIT)))
    one, other = outcomes
    assert one.sent != other.sent
    assert one.counted == other.counted
    assert one.state == other.state
