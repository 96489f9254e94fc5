"""``edgepfl estimate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from coordinator.config import RunConfig
from coordinator.estimated import table
from edgepfl.algorithms import parse_settings
from edgepfl.bundle import unpack
from edgepfl.coding import codec_of
from edgepfl.errors import BundleError, ConfigError
from edgepfl.validation import convert, on_command_line


def main(arguments: list[str]) -> int:
    """Print how many bytes a run will move."""
    words = _parser().parse_args(arguments)
    config = _config(words)
    try:
        data = words.bundle.read_bytes()
    except OSError as error:
        raise BundleError(f"it cannot be read ({error.strerror})", where=str(words.bundle)) from error
    from coordinator.estimate import estimate  # noqa: PLC0415  it needs torch, and --help shall not wait for that

    bundle = unpack(data, where=str(words.bundle), golden=False)
    found = estimate(bundle, config, [f"device-{number:03}" for number in range(words.devices)])
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n" if words.json else table(found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl estimate",
        description="Tell how many bytes a run will move, before anyone trains: of each message and blob of a round, "
        "at the coordinator's socket and at a device's.",
        epilog="Counted are MQTT packets, without TLS, TCP, repetitions and the progress messages of long rounds. What "
        "a broadcast costs the coordinator does not grow with the devices.",
    )
    parser.add_argument("bundle", type=Path, help="as edgepfl export wrote it")
    parser.add_argument("--devices", type=int, default=10, metavar="N", help="devices of the fleet (default: 10)")
    parser.add_argument("--goal", type=int, metavar="N", help="devices to select for a round (default: all)")
    parser.add_argument("--rounds", type=int, default=RunConfig().rounds, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--codec", default="", metavar="WORDS", help="of uploads, as for edgepfl run start")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="hyperparameter of the run; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, in bytes")
    return parser


def _config(words: argparse.Namespace) -> RunConfig:
    """The settings of such a run.

    Raises:
        ConfigError: a number is out of range, or there is no such codec.
    """
    codec_of(words.codec)
    goal = words.devices if words.goal is None else words.goal
    if not 1 <= goal <= words.devices:
        what = f"{goal} of {words.devices} devices"
        raise ConfigError(what, where="--goal", remedy="Give 1 to the number of devices")
    fields: dict[str, Any] = {"goal": goal, "minimum": goal, "rounds": words.rounds, "codec": words.codec}
    fields["hyper"] = parse_settings(words.set)
    place = on_command_line("edgepfl estimate", {"hyper": "--set"})
    return convert(fields, RunConfig, place, remedy="See edgepfl estimate --help")
