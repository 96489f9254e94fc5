"""``edgepfl agent`` and ``edgepfl model``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from device_agent import footprint, models, owner, sources
from device_agent.conditions import Sensors
from device_agent.conditions_sampler import Sampler
from device_agent.config import AgentConfig, load
from device_agent.erase import erase
from device_agent.place import DATABASE
from device_agent.runners.choice import choose
from device_agent.service import AgentService, Place, will
from device_agent.work import Workshop
from edgepfl.bus.heap import give_back_large_blocks
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
  [work]                               # optional
  checkpoint_seconds = 60              # a power cut costs no more training than this; 0: all of the round
  [transfer]                           # optional: see docs/transfer.md
  chunk_kib = 0                        # 16 to 256; 0: what the link carries in a second
  quota_mib = 0                        # of models and uploads on the disk; 0: no limit
  reserve_mib = 64                     # of the disk that stay free for others
  [conditions]                         # optional: what you know better than the device, see docs/eligibility.md
  metered = true                       # its traffic is paid for by the byte; likewise wifi and powered
  every = 5                            # seconds between two looks at its sensors, while a run asks
"""


def agent(arguments: list[str]) -> int:
    """Run a device's agent until SIGINT or SIGTERM; or erase what it keeps, or give it to its owner."""
    if arguments[:1] == ["erase"]:
        return _erase(arguments[1:])
    if arguments[:1] == ["export"]:
        return _export(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="edgepfl agent",
        description="Run the agent of one device: it trains on its own data whenever the coordinator asks. "
        "To get or remove all that it keeps, see edgepfl agent export --help and edgepfl agent erase --help.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    config = load(settings_file(parser, arguments))
    give_back_large_blocks()
    asyncio.run(_serve(config))
    return 0


def model(arguments: list[str]) -> int:
    """Write the model that a device ended with, tell what it has of each run, or delete that."""
    parser = argparse.ArgumentParser(
        prog="edgepfl model",
        description="Write the personal model of this device, as the last run left it, to a safetensors file; or see "
        "and delete what the device keeps of each run.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's settings")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write the model to; the agent may be running"
    )
    what.add_argument("--list", action="store_true", help="what is kept of each run; the agent may be running")
    what.add_argument(
        "--forget",
        metavar="RUN",
        help="delete all that is kept of a run: personal state, reports, uploads and model, and any checkpoint. Stop "
        "the agent before. A device that forgets a run that goes on takes part in it like a new one",
    )
    parser.add_argument("--json", action="store_true", help="with --list: one JSON array, for scripts")
    words = parser.parse_args(arguments)
    config = load(words.config)
    store = Path(config.state) / DATABASE
    if words.list:
        _list(models.held(store), as_json=words.json)
    elif words.forget is not None:
        _forget(config, words.forget)
    else:
        _write(models.newest(store), words.output)
    return 0


def _erase(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="edgepfl agent erase",
        description="Overwrite and delete what this device keeps, before it is sold or given back, and tell what was "
        "there. Stop its agent before. Interrupted, run it again. The examples, the settings and what other "
        "programs put there stay; cards and SSDs may keep old cells: see docs/at-rest.md.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's settings")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", metavar="RUN", help="what is kept of one run, as edgepfl model --forget")
    what.add_argument("--all", action="store_true", help="everything: the device would join as a new one")
    parser.add_argument("--json", action="store_true", help="with --all: one JSON object, for scripts")
    words = parser.parse_args(arguments)
    config = load(words.config)
    if words.run is not None:
        _forget(config, words.run)
        return 0
    erased = erase(Path(config.state))
    if words.json:
        print(json.dumps({"state": config.state, "erased": [asdict(each) for each in erased]}))
        return 0
    for each in erased:
        print(f"{each.path:<73}  {each.size:>11} bytes  sha256 {each.sha256}")
    print(f"{config.state}: {len(erased)} files erased; looked again, nothing of the agent is left but its empty lock")
    return 0


def _export(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="edgepfl agent export",
        description="Give the owner of this device what it keeps of him: his examples, models and personal state, and "
        "what waits to be sent, in open formats with a README. The agent may be running.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a new folder")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the agent's settings")
    words = parser.parse_args(arguments)
    config = load(words.config)
    runs = models.owned(Path(config.state) / DATABASE)
    files = owner.contents(config, sources.load(config.data), runs)
    owner.write(words.folder, files)
    print(f"{words.folder}: {len(files)} files, {len(runs)} runs; begin with README.md")
    return 0


def _write(served: models.Served, output: Path) -> None:
    try:
        output.write_bytes(served.data)
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(output)) from error
    print(f"{output}: the model of run {served.run}, {len(served.data)} bytes")


def _list(runs: list[models.Held], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(run) for run in runs]))
        return
    for run in runs:
        notes = ["a report waits"] * run.waiting + ["a model that predicts"] * run.serves
        about = f"settled round {run.settled}" if run.settled >= 0 else "no settled round"
        print(f"{run.run:<40}  {', '.join([about, *notes])}, {run.size} bytes")


def _forget(config: AgentConfig, run: str) -> None:
    state = Path(config.state)
    store = state / DATABASE
    if run not in {each.run for each in models.held(store)}:
        raise ConfigError(f"nothing is kept of run {run!r}", where=str(store), remedy="See --list")
    place = Place.open(state, config.transfer.room)
    with place.store:
        # Whose checkpoint it is cannot be told; of another run it costs some steps.  It goes first: whoever is
        # interrupted finds the run still listed, and forgets it again.
        place.drop_checkpoint()
        place.store.forget(run)
        place.forget_offers()
    print(f"{run}: forgotten")


async def _serve(config: AgentConfig) -> None:
    examples = sources.load(config.data)
    choice = choose(config.runtime)
    place = Place.open(Path(config.state), config.transfer.room)
    number = place.next_session()
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
    sensors = Sampler(Sensors(Path(config.state), config.conditions), config.conditions.every)
    with place.store, ThreadPoolExecutor(1, thread_name_prefix="work") as pool, sensors:
        service = AgentService(
            config.device,
            config.fleet,
            number,
            bus=MqttBus(mqtt_settings(config.broker, config.device), will=will(config.fleet, config.device, number)),
            place=place,
            examples=examples,
            # Memory is scarce on a board.
            workshop=Workshop(
                choice.runner, runtime=choice.runtime, version=choice.version, most=1, tidy=footprint.trim
            ),
            pool=pool,
            transfer=config.transfer,
            checkpoint_seconds=config.work.checkpoint_seconds,
            sensors=sensors,
            sense_every=config.conditions.every,
        )
        await until_signal(service.run())
