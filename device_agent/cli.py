"""``edgepfl agent`` and ``edgepfl model``."""

from __future__ import annotations

import argparse
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from device_agent import footprint, models, sources
from device_agent.config import AgentConfig, load
from device_agent.runners.choice import choose
from device_agent.service import AgentService, Place, will
from device_agent.work import Workshop
from edgepfl.bus.lifetime import settings_file, until_signal
from edgepfl.bus.mqtt import MqttBus
from edgepfl.bus.settings import mqtt_settings
from edgepfl.errors import ConfigError

_EPILOG = """agent.toml:

  device = "pi-07"                     # unique in its fleet
  fleet = "watches"
  state = "agent-state"                # directory; paths are relative to this file
  [broker]
  url = "mqtt://192.168.1.10:1883"     # or mqtts://; username, password_file, ca, cert, key
  [data]
  source = "data.npz"                  # arrays train_x, train_y and, to be evaluated, test_x, test_y; or:
                                       # "FILE.csv", options = {label = "COLUMN", test_fraction = 0.2, delimiter = ","}
                                       # (the last rows test), or "module:function" and its keyword arguments
  [runtime]                            # optional
  kind = "onnx"                        # or "executorch": see edgepfl build-runner
  threads = 1
"""


def agent(arguments: list[str]) -> int:
    """Run a device's agent until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="edgepfl agent",
        description="Run the agent of one device: it trains on its own data whenever the coordinator asks.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    asyncio.run(_serve(load(settings_file(parser, arguments))))
    return 0


def model(arguments: list[str]) -> int:
    """Write the model that a device ended with."""
    parser = argparse.ArgumentParser(
        prog="edgepfl model",
        description="Write the personal model of this device, as the last run left it, to a safetensors file. "
        "The agent may be running.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's settings")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    words = parser.parse_args(arguments)
    served = models.newest(Path(load(words.config).state) / "store.db")
    try:
        words.output.write_bytes(served.data)
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(words.output)) from error
    print(f"{words.output}: the model of run {served.run}, {len(served.data)} bytes")
    return 0


async def _serve(config: AgentConfig) -> None:
    examples = sources.load(config.data)
    choice = choose(config.runtime)
    place = Place.open(Path(config.state))
    number = place.store.next_session()
    logging.getLogger(__name__).info(
        "device %s of fleet %s: trains on %d examples and tests on %d%s; on %s; session %d",
        config.device,
        config.fleet,
        examples.count,
        len(examples.test_y),
        "" if len(examples.test_y) else ", so its models will not be evaluated",
        choice.version,
        number,
    )
    with place.store, ThreadPoolExecutor(1, thread_name_prefix="work") as pool:
        service = AgentService(
            config.device,
            config.fleet,
            number,
            bus=MqttBus(mqtt_settings(config.broker, config.device), will=will(config.fleet, config.device, number)),
            place=place,
            examples=examples,
            # Memory is scarce on a board.
            workshop=Workshop(choice.runner, runtime=choice.runtime, most=1, tidy=footprint.trim),
            pool=pool,
        )
        await until_signal(service.run())
