"""``edgepfl bench fusion``: how long FPFC's server takes for a round, and in how much memory."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from coordinator.fusion import ENGINES
from edgepfl.errors import ConfigError
from simulators import kept
from simulators.bench import arguments
from simulators.bench.fusion import Plan, run, text

_USUAL = ("naive", "lean", "history", "hybrid")
_MOST = 10**8

_DESCRIPTION = (
    "How long FPFC's server takes for a round (the centres of the cohort, then the update of all pairs) with each of "
    "its engines, and in how much memory. Devices are quadratics in four clusters, in this process; each engine has "
    "devices of its own, so errors would add up, and error is the greatest difference of any centre or upload from "
    "those of the first engine that fits into memory. ms is of the median round after a tenth of the rounds: processor "
    "time on one thread of a CPU, else the clock's. The floor is the round's float64 products at the speed of a large "
    "one or its memory traffic at that of a copy, whichever takes longer. Memory is the process's peak resident set "
    "less what it was before the engine was made, or what torch allocated on a GPU."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    fusion = commands.add_parser(
        "fusion",
        help="FPFC's server: a round's time and memory with each engine",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench fusion --m 100,300 --d 2000,10000 --active 0.3 --threads 1 --json rows.json",
    )
    fusion.add_argument("--m", default="100", metavar="N,...", help="devices (default: %(default)s)")
    fusion.add_argument("--d", default="2000", metavar="N,...", help="fused parameters (default: %(default)s)")
    fusion.add_argument(
        "--active", default="0.3", metavar="SHARE,...", help="of the devices in a round, up to 1 (default: %(default)s)"
    )
    fusion.add_argument("--rounds", default="120", metavar="N", help="(default: %(default)s)")
    fusion.add_argument(
        "--engines", default=",".join(_USUAL), metavar="NAMES", help=f"of {', '.join(ENGINES)} (default: %(default)s)"
    )
    fusion.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="(default: %(default)s)")
    fusion.add_argument("--threads", default="", metavar="N", help="of the processor (default: torch's choice)")
    fusion.add_argument(
        "--dtype", default="float32", choices=["float32", "float64"], help="of the rows (default: %(default)s)"
    )
    fusion.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    fusion.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    if words.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no CUDA device", where="--device", remedy="Take cpu")
    plan = Plan(
        engines=arguments.chosen("--engines", words.engines, ENGINES),
        m=[arguments.number("--m", word) for word in words.m.split(",")],
        d=[arguments.number("--d", word, _MOST) for word in words.d.split(",")],
        active=[arguments.share("--active", word) for word in words.active.split(",")],
        rounds=arguments.number("--rounds", words.rounds),
        device=words.device,
        threads=arguments.number("--threads", words.threads) if words.threads else 0,
        dtype=words.dtype,
    )
    rows = run(plan, arguments.tell)
    print(text(rows))
    if words.json:
        kept.write(rows, words.json)
    return 0
