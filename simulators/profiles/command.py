"""``edgepfl profiles``: what emulated devices are, and where each number comes from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from exporters.catalogue_page import renew
from simulators.profiles import page
from simulators.profiles.profile import REFERENCE, DeviceProfile
from simulators.profiles.registry import built_in, load_profiles, profile

_EPILOG = f"""\
examples:
  edgepfl profiles                         a table of all
  edgepfl profiles pi-zero-2               one, with the source of each number
  edgepfl profiles --file mine.toml        those of a file of your own, too
  edgepfl profiles --json                  for a program; null is no limit, or no battery

The time of a step is against {REFERENCE}.
docs/profiles.md tells how to describe a device of your own.
"""


def main(arguments: list[str]) -> int:
    """List profiles, or tell all about one.

    Raises:
        ConfigError: there is no such profile, or a file cannot be read or written.
    """
    parser = _parser()
    words = parser.parse_args(arguments)
    if words.markdown and (words.name or words.file):
        parser.error("--markdown has room for the tables of the profiles that come along only")
    own: Mapping[str, DeviceProfile] = load_profiles(words.file) if words.file else MappingProxyType({})
    if words.name:
        found = profile(words.name, own)
        print(_json(found) if words.json else page.one(found))
        return 0
    every = {**built_in(), **own}
    if words.json:
        print(_json(every))
    elif words.markdown:
        tables = (page.as_markdown(every.values()), page.sources_as_markdown(every.values()))
        renew(words.markdown, dict(zip(page.BLOCKS, tables, strict=True)))
    else:
        print(page.table(every.values()))
    return 0


def _json(found: object) -> str:
    return msgspec.json.encode(found).decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl profiles",
        description="List the kinds of devices that can be emulated, or tell all about one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="tell all about this profile")
    parser.add_argument("--file", type=Path, metavar="FILE", help="a TOML file with profiles of your own")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="renew the tables in docs/profiles.md")
    return parser
