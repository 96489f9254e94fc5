"""``edgepfl bench zoo``: the zoo's models exported, compared with torch, timed, and written down."""

from __future__ import annotations

import argparse
from pathlib import Path

from exporters.zoo import ZOO
from simulators.bench import arguments, record, zoo_page
from simulators.bench.record import Record
from simulators.bench.zoo import ALGORITHMS, RUNTIMES, Matrix, run


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    zoo = commands.add_parser(
        "zoo",
        help="every model of the zoo: export, error, size, speed",
        description="Export every model of the zoo under several algorithms for every runtime, train three devices for "
        "three rounds by the graphs and by plain torch, and compare all that they compute. The exit status is 1 "
        "where an error is above 1e-4 or an export failed.",
        epilog="The whole takes about an hour. With --json a run that was cut off goes on where it was: rows that the "
        "file has are not measured again. example: edgepfl bench zoo --models mlp,cnn1d --algorithms fedavg",
    )
    zoo.add_argument("--models", default=",".join(ZOO), metavar="NAMES", help="comma-separated (default: %(default)s)")
    zoo.add_argument(
        "--algorithms", default=",".join(ALGORITHMS), metavar="NAMES", help="likewise (default: %(default)s)"
    )
    zoo.add_argument("--runtimes", default=",".join(RUNTIMES), metavar="NAMES", help="likewise (default: %(default)s)")
    zoo.add_argument("--batch", default="8", metavar="ROWS", help="rows of a minibatch (default: %(default)s)")
    zoo.add_argument("--json", type=Path, metavar="FILE", help="keep the rows there, and do not measure those it has")
    zoo.add_argument("--docs", type=Path, metavar="FOLDER", help="write zoo.md and its pictures there")
    zoo.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    matrix = Matrix(
        models=arguments.chosen("--models", words.models, ZOO),
        algorithms=arguments.chosen("--algorithms", words.algorithms, ALGORITHMS),
        runtimes=arguments.chosen("--runtimes", words.runtimes, RUNTIMES),
        batch=arguments.number("--batch", words.batch),
    )
    file: Path | None = words.json
    before = record.read(file) if file else Record()

    def keep(now: Record) -> None:
        if file:
            record.write(now, file)

    found = run(matrix, before, keep, arguments.tell).of(matrix.cases)
    print(zoo_page.text(found))
    if words.docs:
        zoo_page.write(found, words.docs)
    return 0 if found.right else 1
