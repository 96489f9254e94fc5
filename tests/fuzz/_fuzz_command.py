"""The command of the fuzzers: ``python tests/fuzz --inputs 10000000``."""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from _fuzz_campaign import BATCH, ROOM, Batch, file_name, limited, rows, run_batch, shared_out, watched
from _fuzz_oracle import Target
from _fuzz_targets import target_of, targets

_TOLD = 2.0  # seconds between two lines of progress


class Order(NamedTuple):
    """A batch to run."""

    target: str
    seed: int
    number: int


class Heard(NamedTuple):
    """A batch that was run, and the most memory that its process ever had, in bytes."""

    batch: Batch
    resident: int


def main(words: Sequence[str]) -> int:
    """Run a campaign; 1 if it found a fault."""
    options = _parser().parse_args(words)
    try:
        chosen = _chosen(options.target)
    except LookupError as error:
        sys.stderr.write(f"--target: {error.args[0]}\n")
        return 2
    if options.inputs < 1 or options.jobs < 1:
        sys.stderr.write("--inputs and --jobs: give at least 1\n")
        return 2
    wanted = shared_out(options.inputs, chosen)
    done = [each for each in _kept(options.state) if each.batch.target in wanted] if options.state else []
    here = {(each.batch.target, each.batch.number) for each in done}
    orders = [
        Order(name, options.seed, number)
        for name, count in wanted.items()
        for number in range(count)
        if (name, number) not in here
    ]
    for each in _run(orders, options.jobs, sum(wanted.values())):
        done.append(each)
        _keep(each, options)
    _tell(done, as_json=options.json)
    return int(any(each.batch.faults for each in done))


def _chosen(names: Sequence[str]) -> list[Target]:
    """The targets of these names, or all."""
    if not names:
        return list(targets().values())
    found = {name: target_of(name) for name in names}
    for name, target in found.items():
        if target is None:
            raise LookupError(f"there is no target {name!r}. There are {', '.join(sorted(targets()))}")
    return [target for target in found.values() if target is not None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/fuzz",
        description="Send hostile inputs to every parser of bytes from outside. A fault is an error that the parser "
        "does not declare, a value that does not come back when it is written and read again, or memory or time beyond "
        "the parser's bound. Exits with 1 if there is one.",
    )
    add = parser.add_argument
    add("--inputs", type=int, default=200_000, metavar="N", help=f"in total, in batches of {BATCH} (default: 200000)")
    add("--seed", type=int, default=0, help="of the inputs: the same gives the same (default: 0)")
    add("--jobs", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    add("--target", action="append", default=[], metavar="NAME", help="this parser; may be repeated (default: all)")
    add("--found", type=Path, metavar="DIRECTORY", help="write the input of each fault to DIRECTORY/TARGET/DIGEST")
    add("--state", type=Path, metavar="FILE", help="note finished batches here, and go on from what it has; one seed")
    add("--json", action="store_true", help="a line of JSON for each parser instead of a table")
    return parser


def _run(orders: Sequence[Order], jobs: int, total: int) -> Iterator[Heard]:
    if not orders:
        return
    context = multiprocessing.get_context("spawn")  # each has only what it imports
    told, finished = 0.0, total - len(orders)
    with context.Pool(jobs, maxtasksperchild=50) as pool:
        for heard in pool.imap_unordered(_worked, orders):
            finished += 1
            yield heard
            if time.monotonic() - told > _TOLD:
                told = time.monotonic()
                sys.stderr.write(f"{finished} of {total} batches, last {heard.batch.target}\n")


def _worked(order: Order) -> Heard:
    (target,) = _chosen([order.target])
    with limited(ROOM):
        batch = run_batch(watched(target), order.seed, order.number)
    return Heard(batch, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def _kept(state: Path) -> list[Heard]:
    if not state.exists():
        return []
    return [msgspec.json.decode(line, type=Heard) for line in state.read_bytes().splitlines()]


def _keep(heard: Heard, options: argparse.Namespace) -> None:
    if options.state:
        with options.state.open("ab") as file:
            file.write(msgspec.json.encode(heard) + b"\n")
    for fault in heard.batch.faults if options.found else ():
        path = options.found / file_name(fault)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fault.data)


def _tell(done: Sequence[Heard], *, as_json: bool) -> None:
    found = rows(each.batch for each in done)
    resident = {name: max(each.resident for each in done if each.batch.target == name) for name in found}
    for line in _lines(found, resident) if not as_json else _json(found, resident):
        sys.stdout.write(line + "\n")


def _json(found: Mapping[str, Batch], resident: Mapping[str, int]) -> Iterator[str]:
    for name, row in found.items():
        faults = [{"what": fault.what, "input": fault.data.hex()[:400]} for fault in row.faults]
        fields = {**msgspec.structs.asdict(row), "resident": resident[name], "faults": faults}
        yield msgspec.json.encode(fields).decode()


def _lines(found: Mapping[str, Batch], resident: Mapping[str, int]) -> Iterator[str]:
    heads = f"{'accepted':>8} {'inputs/s':>9} {'KB at most':>10} {'process MB':>10} {'faults':>6}"
    yield f"{'target':10} {'inputs':>10} {heads}"
    for name, row in found.items():
        yield (
            f"{name:10} {row.inputs:10,} {row.accepted / row.inputs:8.1%} {row.inputs / row.seconds:9,.0f} "
            f"{row.memory / 1000:10,.0f} {resident[name] / 1e6:10,.0f} {len(row.faults):6}"
        )
        yield from (f"    {fault.what}" for fault in row.faults)
    inputs, seconds = (sum(getattr(row, name) for row in found.values()) for name in ("inputs", "seconds"))
    faults = sum(len(row.faults) for row in found.values())
    yield f"{'all':10} {inputs:10,} {'':8} {inputs / seconds:9,.0f} {'':10} {'':10} {faults:6}"
