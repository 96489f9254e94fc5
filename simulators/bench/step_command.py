"""``edgepfl bench step``: how long one training step takes, and in how much memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

from simulators.bench import arguments
from simulators.bench.job import CONTESTANTS
from simulators.bench.models import DEFAULT, MODELS
from simulators.bench.result import text
from simulators.bench.step import Plan, run

_DESCRIPTION = (
    "How long one training step takes, side by side: the exported graphs as a device runs them, and plain torch "
    "(module, loss, backward, SGD). The runners take turns, so that what else the machine does hits them alike. us is "
    "of the best turn: processor time on one thread, the clock on several. The floor is the step's matrix products and "
    "convolutions at the speed that this machine multiplies two big matrices with. Memory (PSS) is of a process that "
    "does nothing else. ExecuTorch needs its library: edgepfl build-runner."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    step = commands.add_parser(
        "step",
        help="one training step: time and memory",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench step --models cnn1d,resnet --threads 1 --runners eager,onnx",
    )
    step.add_argument(
        "--models", default=",".join(DEFAULT), metavar="NAMES", help=f"of {', '.join(MODELS)} (default: %(default)s)"
    )
    step.add_argument("--runners", default=",".join(CONTESTANTS), metavar="NAMES", help="(default: %(default)s)")
    step.add_argument(
        "--threads", default="1,2", metavar="N,...", help="threads of one operator (default: %(default)s)"
    )
    step.add_argument("--batch", default="32", metavar="ROWS", help="rows of a minibatch (default: %(default)s)")
    step.add_argument("--rounds", default="30", metavar="N", help="turns of each runner (default: %(default)s)")
    step.add_argument(
        "--algorithm", default="fedavg", metavar="NAME", help="whose step the device takes (default: fedavg)"
    )
    step.add_argument(
        "--no-memory", action="store_true", help="do not measure memory, which takes a process for each runner"
    )
    step.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    step.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    plan = Plan(
        models=arguments.chosen("--models", words.models, MODELS),
        runners=arguments.chosen("--runners", words.runners, CONTESTANTS),
        threads=[arguments.number("--threads", word) for word in words.threads.split(",")],
        batch=arguments.number("--batch", words.batch),
        rounds=arguments.number("--rounds", words.rounds),
        memory=not words.no_memory,
        algorithm=words.algorithm,
    )
    with tempfile.TemporaryDirectory(prefix="edgepfl-bench-") as folder:
        rows = run(plan, Path(folder), arguments.tell)
    print(text(rows))
    if words.json is not None:
        found = [dataclasses.asdict(row) for row in rows]
        words.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0
