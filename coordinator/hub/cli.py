"""``edgepfl hub``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from pathlib import Path

from coordinator.hub.config import HubConfig, load
from edgepfl.bus.lifetime import settings_file, until_signal
from edgepfl.bus.mqtt import MqttBus
from edgepfl.bus.settings import mqtt_settings

log = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run a hub until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="edgepfl hub",
        description="Run a hub: a coordinator to its devices and a device to its parent. It adds its devices' uploads "
        "up, so that the parent's traffic does not grow with them, and goes on where it was stopped.",
        epilog='hub.toml: fleet = "NAME" of its devices and a table [broker] with url = "mqtt://HOST:1883", as in '
        'coordinator.toml; a table [parent] with fleet = "NAME" and device = "NAME", what the parent calls it, and '
        'a table [parent.broker] with a url. Optionally state = "DIRECTORY" and minimum = REPORTS; relay = true, which '
        "passes every device through instead of adding up; or rounds = N, which trains a model of its own for N rounds "
        "in one of the parent's. The parent's coordinator.toml lists a hub that adds up: hubs = { NAME = DEVICES }",
    )
    config = load(settings_file(parser, arguments))
    log.info("fleet %s below fleet %s, state in %s", config.fleet, config.parent.fleet, config.state)
    asyncio.run(_relay(config) if config.relay else _serve(config))
    return 0


async def _serve(config: HubConfig) -> None:
    from coordinator.hub.levels import Nested  # noqa: PLC0415  it needs torch, and --help shall not wait for that
    from coordinator.hub.link import Link, will  # noqa: PLC0415  likewise
    from coordinator.hub.service import HubService, Modelling  # noqa: PLC0415  likewise

    parent = config.parent
    nested = Nested(config.nested.mu, config.nested.lr, config.nested.step) if config.nested is not None else None

    def link(hub: HubService) -> Link:
        number = hub.next_session()
        settings = mqtt_settings(parent.broker, parent.device)
        bus = MqttBus(settings, will=will(parent.fleet, parent.device, number))
        return Link(
            parent.device,
            parent.fleet,
            number,
            bus=bus,
            fetched=hub.vault.offered.local,
            offered=hub.upward,
            clock=time.monotonic,
            ear=hub,
        )

    service = HubService(
        config.fleet,
        MqttBus(mqtt_settings(config.broker, f"{config.fleet}_coordinator", busy=True)),
        Path(config.state),
        link=link,
        config=config.rounds_as,
        hubs=config.hubs,
        form=Modelling(config.rounds, nested) if config.rounds else None,
    )
    await until_signal(service.run())


async def _relay(config: HubConfig) -> None:
    from coordinator.hub.relay import Relay  # noqa: PLC0415  a hub that sums does not need it

    own = mqtt_settings(config.broker, f"{config.fleet}_coordinator", busy=True)
    above = mqtt_settings(config.parent.broker, f"{config.parent.fleet}_relay_{config.fleet}", busy=True)
    await until_signal(Relay(config.fleet, MqttBus(own), config.parent.fleet, MqttBus(above)).run())
