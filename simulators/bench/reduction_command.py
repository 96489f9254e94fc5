"""``edgepfl bench reduction``: how fast the server folds uploads, and in how much memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.bench import arguments

_MOST = {"--d": 1 << 28, "--k": 1 << 20}  # beyond which a number is a slip
_DESCRIPTION = (
    "How many bytes of uploads the server folds in a second, decoding included, beside one read of the same bytes on "
    "one core in the same run, which torch's sum takes. Ordered: in float64, in the order of the devices. Exact: "
    "without rounding, so in any order and grouping. On one thread by processor time, on several by the clock. Memory "
    "is above that before the first round, and shall not grow with K."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    reduction = commands.add_parser(
        "reduction",
        help="folding uploads: bytes a second and memory",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench reduction --k 100 --threads 1,2",
    )
    reduction.add_argument("--d", default="1200000", metavar="N", help="numbers in an upload (default: %(default)s)")
    reduction.add_argument(
        "--k", default="10,100,1000", metavar="N,...", help="uploads in a round (default: %(default)s)"
    )
    reduction.add_argument("--threads", default="1,2", metavar="N,...", help="of torch (default: %(default)s)")
    reduction.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: %(default)s)")
    reduction.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program, too")
    reduction.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    from simulators.bench.reduction import run, text  # noqa: PLC0415  it needs torch, which takes a second

    ks = [_count("--k", word) for word in words.k.split(",")]
    threads = [arguments.number("--threads", word) for word in words.threads.split(",")]
    rows = run(_count("--d", words.d), ks, threads, words.device, arguments.tell)
    print(text(rows))
    if words.json is not None:
        found = [dataclasses.asdict(row) for row in rows]
        words.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _count(option: str, word: str) -> int:
    most = _MOST[option]
    if not word.strip().isdecimal() or not 1 <= int(word) <= most:
        raise ConfigError(f"{word!r} is no whole number from 1 to {most}", where=option)
    return int(word)
