"""Signs of life of a device whose downlink is full: they do not wait for acknowledgements that are stuck there."""

from __future__ import annotations

from pathlib import Path

import pytest
from _bundles import ditto_bundle
from _hand import DEVICE, FLEET, Hand, examples, play

from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.wire import Hello, Progress
from simulators.broker import BrokerHandle
from simulators.faults import FaultProxy, Faults, Way
from simulators.fleet import AgentFleet

pytestmark = pytest.mark.broker
ENDLESS = 1 << 40  # steps


def test_they_come_while_no_acknowledgement_does(tmp_path: Path, broker: BrokerHandle) -> None:
    async def scenario() -> None:
        coordinator = Hand(LoopbackBroker(), tmp_path, ditto_bundle())
        coordinator.bus = MqttBus(MqttSettings(broker.url, "coordinator"))  # type: ignore[assignment]  # any bus will do
        await coordinator.start()
        async with FaultProxy(broker.url) as proxy:
            settings = MqttSettings(proxy.url, DEVICE)
            async with AgentFleet(proxy.url, FLEET, {DEVICE: examples()}, tmp_path):
                await coordinator.hear(Hello)
                coordinator.say(coordinator.task(steps=ENDLESS, heartbeat=0.1))
                while (await coordinator.hear(Progress)).steps == 0:
                    pass
                proxy.own[DEVICE] = Faults(down=Way(swallow=True))
                for _ in range(3 * settings.max_inflight):
                    await coordinator.hear(Progress)
                proxy.own.clear()
        await coordinator.bus.stop()

    play(scenario())
