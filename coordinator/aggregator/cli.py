"""``edgepfl aggregator``."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from coordinator.storage.location import anchored
from edgepfl.bus import settings
from edgepfl.bus.lifetime import settings_file, until_signal
from edgepfl.bus.mqtt import MqttBus
from edgepfl.bus.settings import Broker, mqtt_settings
from edgepfl.topics import check_name


class AggregatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``aggregator.toml`` may say.

    Attributes:
        fleet: the fleet's name, as in the coordinator's settings.
        broker: how to reach the broker.
        store: URL of the store that is shared with the coordinator.
        device: where the columns are: ``cpu`` or ``cuda``.
    """

    fleet: str
    broker: Broker
    store: Annotated[str, Meta(min_length=1)]
    device: Literal["cpu", "cuda"] = "cpu"


def load(path: Path) -> AggregatorConfig:
    """The settings in a TOML file; paths in it are relative to it.

    Raises:
        ConfigError: unreadable, not TOML, or a key or value that may not be there.
    """
    config = settings.read(path, AggregatorConfig)
    check_name(config.fleet, f"{path}, fleet")
    folder = path.absolute().parent
    broker = settings.broker_in(config.broker, folder, f"{path}, broker")
    return msgspec.structs.replace(config, broker=broker, store=anchored(config.store, f"{path}, store", folder))


def main(arguments: list[str]) -> int:
    """Be one rank of a fleet's aggregator until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="edgepfl aggregator",
        description="Do the server's mathematics for a coordinator, in one process or, started by torchrun, in several "
        "that have a part of the model each: torchrun --nproc-per-node N --max-restarts K -m edgepfl aggregator "
        "--config FILE",
        epilog='aggregator.toml: fleet = "NAME", store = "DIRECTORY or s3://BUCKET/PREFIX", optionally '
        'device = "cuda", and a table [broker] with url = "mqtt://HOST:1883", optionally username, password_file, ca, '
        "cert and key. coordinator.toml says the same fleet, broker and store, and has a table [aggregator]",
    )
    return _serve(load(settings_file(parser, arguments)))


def _serve(config: AggregatorConfig) -> int:
    from coordinator.aggregator.crew import Crew, Scattered  # noqa: PLC0415  --help shall not wait for torch
    from coordinator.aggregator.line import opened  # noqa: PLC0415  likewise
    from coordinator.aggregator.member import Member  # noqa: PLC0415  likewise
    from coordinator.aggregator.service import Leader, follow  # noqa: PLC0415  likewise
    from coordinator.storage.location import open_depot  # noqa: PLC0415  likewise

    log = logging.getLogger(__name__)
    depot = open_depot(config.store, fleet=config.fleet)
    try:
        with opened(config.device) as (line, device):
            crew = Crew(line)
            member = Member(crew, depot, device)
            log.info("rank %d of %d, on %s, store %s", crew.rank, crew.ranks, device, depot.where)
            if crew.rank:
                follow(crew, member)
            else:
                bus = MqttBus(mqtt_settings(config.broker, f"{config.fleet}_aggregator"))
                asyncio.run(until_signal(Leader(config.fleet, bus, crew, member, depot).run()))
    except Scattered as lost:
        log.error("stopped, to be started again: %s", lost)  # noqa: TRY400  no fault of ours to trace
        return 1
    return 0
