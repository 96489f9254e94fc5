"""``edgepfl bench step``: how long one training step takes, and in how much memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.bench.job import CONTESTANTS
from simulators.bench.models import MODELS
from simulators.bench.result import text
from simulators.bench.step import Plan, run

_MANY = 1000  # turns, threads or rows beyond which a number is a slip


def main(arguments: list[str]) -> int:
    """Run a benchmark."""
    words = _parser().parse_args(arguments)
    plan = Plan(
        models=_chosen("--models", words.models, MODELS),
        runners=_chosen("--runners", words.runners, CONTESTANTS),
        threads=[_number("--threads", word) for word in words.threads.split(",")],
        batch=_number("--batch", words.batch),
        rounds=_number("--rounds", words.rounds),
        memory=not words.no_memory,
        algorithm=words.algorithm,
    )
    with tempfile.TemporaryDirectory(prefix="edgepfl-bench-") as folder:
        rows = run(plan, Path(folder), _tell)
    print(text(rows))
    if words.json is not None:
        found = [dataclasses.asdict(row) for row in rows]
        words.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _chosen(option: str, given: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {name!r}", where=option, remedy=f"Choose of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _number(option: str, word: str) -> int:
    if not word.strip().isdecimal() or not 1 <= int(word) <= _MANY:
        raise ConfigError(f"{word!r} is no whole number from 1 to {_MANY}", where=option)
    return int(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edgepfl bench", description="Measure on this machine.")
    step = parser.add_subparsers(dest="what", required=True, metavar="step").add_parser(
        "step",
        help="one training step: time and memory",
        description="How long one training step takes, side by side: the exported graphs as a device runs them, and "
        "plain torch (module, loss, backward, SGD). The runners take turns, so that what else the machine does hits "
        "them alike. us is the fastest turn; the floor is the step's matrix products and convolutions at the speed "
        "that this machine multiplies two big matrices with. Memory (PSS) is of a process that does nothing else.",
        epilog="example: edgepfl bench step --models cnn1d --threads 1 --runners eager,onnx",
    )
    step.add_argument(
        "--models", default=",".join(MODELS), metavar="NAMES", help="comma-separated (default: %(default)s)"
    )
    step.add_argument(
        "--runners", default=",".join(CONTESTANTS), metavar="NAMES", help="likewise (default: %(default)s)"
    )
    step.add_argument(
        "--threads", default="1,2", metavar="N,...", help="threads of one operator (default: %(default)s)"
    )
    step.add_argument("--batch", default="32", metavar="ROWS", help="rows of a minibatch (default: %(default)s)")
    step.add_argument("--rounds", default="30", metavar="N", help="turns of each runner (default: %(default)s)")
    step.add_argument(
        "--algorithm", default="fedavg", metavar="NAME", help="whose step the device takes (default: fedavg)"
    )
    step.add_argument(
        "--no-memory", action="store_true", help="do not measure memory, which takes a process for each row"
    )
    step.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    return parser
