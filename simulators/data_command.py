"""``edgepfl data``: which data sets there are, and what a fleet's data look like."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path

import msgspec

from edgepfl import algorithms
from edgepfl.errors import ConfigError
from simulators.datasets import FleetData, load, own
from simulators.datasets.pictures import picture
from simulators.datasets.registry import DEVICES, KNOWN
from simulators.datasets.statistics import Share, Spread, Statistics, statistics
from simulators.partition_choice import PARTS
from simulators.report.markup import Markup, join, tag
from simulators.report.style import STYLE
from simulators.report.table import as_text

LARGE = 5000  # devices, of which it is told how far it is
MOST_ROWS = 20
"""Devices in the table on a terminal; JSON has all."""

PARTS_TEXT = """partitions, joined by +:
  iid                  labels by chance
  dirichlet:ALPHA      each class shared out by a Dirichlet distribution
  mixes:ALPHA          each device's mix of labels by a Dirichlet distribution, in equal sizes
  classes:K            K classes a device
  power:EXPONENT       sizes by a power law of the rank (least=8)
  sizes:ALPHA          sizes by a Dirichlet distribution (least=8)
  lognormal:SIGMA      sizes by a lognormal distribution (least=8)
  rotation:DEGREES     sensors that sit askew, by up to so many degrees
  turn:WAYS            square pictures in quarter turns (4) or upside down (2)
  scale:SIGMA          channels of another gain
  offset:SIGMA         channels with an offset
  noise:LEVEL          ever more noise, of so much variance on the last device

drifts: labels or features, then abrupt, gradual or recurring, with start=, length=, share=, by=, strength=:
  labels:gradual,start=20,length=30

examples:
  edgepfl data show digits --partition dirichlet:0.3 --svg digits.svg
  edgepfl data show synthetic --devices 30 --set alpha=0.5 --set beta=0.5
  edgepfl data show my_module:examples --partition iid+power:1.2 --json
"""


class Described(msgspec.Struct, frozen=True):
    """A data set in the list.

    Attributes:
        name: by which it is named.
        about: one line for people.
        options: with their defaults.
        partitions: whether its examples can be dealt out anew.
    """

    name: str
    about: str
    options: dict[str, float | bool | str | None]
    partitions: bool


def main(arguments: list[str]) -> int:
    """Run ``list`` or ``show``."""
    words = _parser().parse_args(arguments)
    if words.action == "list":
        print(_json(listed()) if words.json else _listing(listed()))
        return 0
    data = load(
        words.name,
        devices=words.devices,
        seed=words.seed,
        partition=words.partition,
        drift=words.drift,
        **algorithms.parse_settings(words.set),
    )
    found = statistics(data, words.round, _progress(len(data.devices)))
    print(_json(found) if words.json else described(found, data, words.seed))
    if words.svg is not None:
        _write(words.svg, picture(found, data.drift))
    if words.html is not None:
        _write(words.html, page(found, data, words.seed))
    return 0


def listed() -> list[Described]:
    """What comes along, and what other distributions bring."""
    found = [
        Described(
            name, known.about, {each.name: _default(each) for each in fields(known.options())}, known.pool is not None
        )
        for name, known in KNOWN.items()
    ]
    return found + [
        Described(name, f"of {point.value}", {}, partitions=True) for name, point in sorted(own.installed().items())
    ]


def described(found: Statistics, data: FleetData, seed: int) -> str:
    """The statistics as text for a terminal."""
    shape = " x ".join(map(str, found.input_shape))
    head = f"{found.name}: {len(found.devices)} devices, {found.examples:,} examples of {shape}, "
    head += f"{len(found.classes)} classes, seed {seed}"
    if data.drift is not None:
        head += f"; round {found.round}, of the new concept: {100 * data.drift.level(found.round):.0f} %"
    spreads = as_text(("over the devices", "min", "median", "mean", "max"), [*_spreads(found)])
    chosen = sorted(found.devices, key=lambda share: (-share.examples, share.device))[:MOST_ROWS]
    rows = [_row(share, found.classes) for share in chosen]
    title = (
        "device" if len(chosen) == len(found.devices) else f"device (the {MOST_ROWS} largest of {len(found.devices)})"
    )
    table = as_text((title, "train", "test", "classes", "entropy", "distance", "most of"), rows)
    return f"{head}\n\n{spreads}\n\n{table}\n\n{LEGEND}"


LEGEND = """entropy: of a device's labels, in bits; distance: total variation between its labels and the fleet's: 0 is
the same mix, 1 nothing in common (the earth mover's distance of Zhao et al. 2018 is twice it)."""


def page(found: Statistics, data: FleetData, seed: int) -> str:
    """The statistics and pictures as one HTML document that fetches nothing."""
    title = f"edgepfl data: {found.name}"
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    note = f"{len(found.devices)} devices, {found.examples:,} examples, {len(found.classes)} classes, seed {seed}."
    body = tag(
        "body",
        tag("h1", title),
        tag("p", note, class_="note"),
        tag("section", tag("div", Markup(picture(found, data.drift)), class_="wide")),
        tag("section", _table(("over the devices", "min", "median", "mean", "max"), _spreads(found))),
        tag("section", _table(("device", *COLUMNS), (_row(share, found.classes) for share in found.devices))),
        tag("p", LEGEND, class_="note"),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


COLUMNS = ("train", "test", "classes", "entropy", "distance", "most of")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag("table", tag("tr", *(tag("th", name) for name in head)), join(*body))


def _spreads(found: Statistics) -> list[tuple[str, ...]]:
    named = {"train": found.train, "test": found.test, "classes": found.held}
    exact = [(name, *(f"{value:,.4g}" for value in _values(spread))) for name, spread in named.items()]
    rest = {"entropy of labels, bits": found.entropy, "distance to the fleet": found.distance}
    return exact + [(name, *(f"{value:.3f}" for value in _values(spread))) for name, spread in rest.items()]


def _values(spread: Spread) -> tuple[float, float, float, float]:
    return spread.min, spread.median, spread.mean, spread.max


def _row(share: Share, classes: Sequence[str]) -> tuple[str, ...]:
    most = max(range(len(classes)), key=lambda number: share.counts[number])
    numbers = (
        f"{share.train:,}",
        f"{share.test:,}",
        str(share.classes),
        f"{share.entropy:.3f}",
        f"{share.distance:.3f}",
    )
    return (share.device, *numbers, f"{classes[most]} ({100 * share.counts[most] / share.examples:.0f} %)")


def _listing(found: Sequence[Described]) -> str:
    lines = []
    for each in found:
        lines.append(f"{each.name:<12} {each.about}")
        options = ", ".join(f"{name}={value}" for name, value in each.options.items())
        lines.append(f"{'':<12} options: {options or 'its own'}")
        lines.append(f"{'':<12} partitions: {'any' if each.partitions else 'rotation, turn, scale, offset, noise'}")
    return "\n".join(lines)


def _default(each: Field[object]) -> float | bool | str | None:
    value = each.default
    return value if isinstance(value, (bool, int, float, str)) else None if value is MISSING else str(value)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _write(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(path)) from error


def _progress(total: int) -> Callable[[int], None]:
    """A line after each tenth of a large fleet."""

    def see(done: int) -> None:
        if total >= LARGE and done * 10 // total > (done - 1) * 10 // total:
            print(f"{done:,} of {total:,} devices", file=sys.stderr, flush=True)

    return see


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl data",
        description="The data sets that a fleet can have, and who has what of them: in numbers and as pictures.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show")
    lists = actions.add_parser("list", help="which data sets there are", description="List the data sets.")
    lists.add_argument("--json", action="store_true", help="for a program")
    show = actions.add_parser(
        "show",
        help="what each device of a fleet has",
        description="Tell what each device of a fleet has: how much, of which classes, how unlike the others.",
        epilog=PARTS_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("name", help=f"one of {', '.join(KNOWN)}, module:function or FILE.npz")
    show.add_argument("--devices", type=int, default=DEVICES, help=f"how many (default: {DEVICES})")
    show.add_argument("--partition", default="", help=f"who has what, from {', '.join(PARTS)}: see below")
    show.add_argument("--drift", default="", help="how the data change with the round: see below")
    show.add_argument(
        "--round", type=int, default=0, help="of data that drift, what they are in this round (default: 0)"
    )
    show.add_argument("--seed", type=int, default=0, help="the same seed gives the same bits (default: 0)")
    show.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the data set")
    show.add_argument("--json", action="store_true", help="every device's numbers, for a program")
    show.add_argument("--svg", type=Path, metavar="FILE", help="write the pictures")
    show.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures and tables")
    return parser
