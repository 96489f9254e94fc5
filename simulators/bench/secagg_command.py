"""``edgepfl bench secagg``: what secure aggregation costs."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.bench import arguments

_MOST_DEVICES, _MOST_NUMBERS, _MOST_EXAMPLES = 2000, 1 << 27, 1 << 31  # beyond which a number is a slip
_LEAST_DEVICES = 3
_MOST_NEIGHBOURS = 254
_DESCRIPTION = (
    "What secure aggregation costs a device and the server, in bytes and processor time, besides training and float32 "
    "uploads. One process plays everybody by the machines that agents and coordinator have; dropouts vanish after "
    "their shares are dealt, which is when they cost most."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    secagg = commands.add_parser(
        "secagg",
        help="secure aggregation: bytes and processor time",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench secagg --n 20 --d 10000 --dropouts 0,0.3",
    )
    secagg.add_argument("--n", default="20,100", metavar="N,...", help="devices in a cohort (default: %(default)s)")
    secagg.add_argument(
        "--d", default="10000,1000000", metavar="N,...", help="numbers in an upload (default: %(default)s)"
    )
    secagg.add_argument(
        "--dropouts", default="0,0.1,0.3", metavar="PART,...", help="of the devices (default: %(default)s)"
    )
    secagg.add_argument(
        "--neighbours", default="0", metavar="N", help="of each device; 0 for as many as the graph needs (default: 0)"
    )
    secagg.add_argument(
        "--max-examples",
        default="1000000",
        metavar="N",
        help="the greatest weight of a device; small ones allow 32 bits a number (default: %(default)s)",
    )
    secagg.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    secagg.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    from simulators.bench.secagg import run, text  # noqa: PLC0415  it needs cryptography, and only this one does

    ns = [arguments.number("--n", word, _MOST_DEVICES) for word in words.n.split(",")]
    if min(ns) < _LEAST_DEVICES:
        raise ConfigError(f"{min(ns)} devices hide nothing", where="--n", remedy=f"Give {_LEAST_DEVICES} or more")
    ds = [arguments.number("--d", word, _MOST_NUMBERS) for word in words.d.split(",")]
    parts = [_part(word) for word in words.dropouts.split(",")]
    neighbours = 0 if words.neighbours == "0" else arguments.number("--neighbours", words.neighbours, _MOST_NEIGHBOURS)
    most = arguments.number("--max-examples", words.max_examples, _MOST_EXAMPLES)
    rows = run(ns, ds, parts, neighbours=neighbours, most=most, tell=arguments.tell)
    print(text(rows))
    if words.json is not None:
        found = [dataclasses.asdict(row) for row in rows]
        words.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _part(word: str) -> float:
    """The part of the devices that drop out.

    Raises:
        ConfigError: it is none, or more than rounds survive.
    """
    try:
        found = float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 0.3:  # noqa: PLR2004  as the option's error says
        raise ConfigError(f"{word!r} is no number from 0 to 0.3", where="--dropouts")
    return found
