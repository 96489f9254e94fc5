"""The command ``edgepfl algorithms``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from edgepfl import presets
from edgepfl.presets import Preset

_EPILOG = """\
examples:
  edgepfl algorithms                                          a table of all
  edgepfl algorithms ditto                                    one: equations, slots, hyperparameters
  edgepfl algorithms feddc --set grad_correction=last_update  what an option changes
  edgepfl algorithms --presets                                published hyperparameters, with their sources
  edgepfl algorithms pfedme --presets                         those of one algorithm

From here to a run: make a bundle with  edgepfl export --algorithm NAME  (or --preset NAME), start
it with  edgepfl run start --bundle FILE , or try it on this machine with  edgepfl demo --algorithm NAME .

Of hyperparameters, a "runtime input" can change from run to run and from round to round, what
"shapes the graphs" needs another export, and "the server's" never reaches a device.
"""


def main(arguments: Sequence[str]) -> int:
    """Run ``edgepfl algorithms``.

    Raises:
        EdgepflError: there is no such algorithm or hyperparameter, or the page cannot be written.
    """
    parser = _parser()
    words = parser.parse_args(arguments)
    if words.set and words.name is None:
        parser.error("--set needs an algorithm's NAME")
    if words.markdown and (words.name or words.presets):
        parser.error("--markdown has room for the tables of all algorithms and presets only")
    if words.presets:
        _tell_presets(_of(words.name), as_json=words.json)
    elif words.name is not None:
        _tell_one(words.name, words.set, as_json=words.json)
    else:
        _tell_all(words.markdown, as_json=words.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl algorithms",
        description="List the algorithms: what crosses, what is kept, which model counts; or tell all about one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="tell all about this algorithm")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a hyperparameter of NAME; may be repeated"
    )
    parser.add_argument("--presets", action="store_true", help="list published hyperparameters, those of NAME if given")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--markdown", type=Path, metavar="FILE", help="renew the tables in a page, such as docs/algorithms.md"
    )
    return parser


def _of(name: str | None) -> Mapping[str, Preset]:
    """The presets of an algorithm, or all."""
    from edgepfl import algorithms  # noqa: PLC0415  torch takes seconds to import, and --help needs none of it

    if name is not None:
        algorithms.load(name)
    return {key: preset for key, preset in presets.every().items() if name in {None, preset.algorithm}}


def _tell_all(markdown: Path | None, *, as_json: bool) -> None:
    from exporters import catalogue, catalogue_page  # noqa: PLC0415  likewise

    rows = catalogue.rows()
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    elif markdown is None:
        print(catalogue_page.table(rows))
    else:
        tables = (catalogue_page.as_markdown(rows), catalogue_page.presets_as_markdown(presets.every()))
        catalogue_page.renew(markdown, dict(zip(catalogue_page.BLOCKS, tables, strict=True)))


def _tell_one(name: str, settings: Sequence[str], *, as_json: bool) -> None:
    from edgepfl import algorithms  # noqa: PLC0415  likewise
    from exporters import catalogue, catalogue_page  # noqa: PLC0415  likewise

    description = catalogue.describe(algorithms.build(name, algorithms.parse_settings(settings)))
    usual = catalogue.row(algorithms.build(name, {}))
    if as_json:
        print(json.dumps({**asdict(description), "presets": list(_of(name))}))
    else:
        print(catalogue_page.page(description, catalogue.differing(usual, description.row), _of(name)))


def _tell_presets(found: Mapping[str, Preset], *, as_json: bool) -> None:
    from exporters import catalogue_page  # noqa: PLC0415  likewise

    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        print(catalogue_page.preset_list(found) or "There is none.")
