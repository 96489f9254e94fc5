"""Words of the command line that every benchmark understands alike."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TypeVar

from edgepfl.errors import ConfigError

_MANY = 1000  # turns, threads or rows beyond which a number is a slip

Name = TypeVar("Name", bound=str)


def tell(what: str) -> None:
    """Say what is being done, beside the result."""
    print(what, file=sys.stderr, flush=True)


def chosen(option: str, given: str, known: Collection[Name]) -> list[Name]:
    """The names in a list with commas, each once.

    Raises:
        ConfigError: one is not known.
    """
    by_name = {str(name): name for name in known}
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in by_name:
            raise ConfigError(f"there is no {name!r}", where=option, remedy=f"Choose of {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def number(option: str, word: str, most: int = _MANY) -> int:
    """A whole number from 1 to ``most``.

    Raises:
        ConfigError: it is none, or far too large.
    """
    if not word.strip().isdecimal() or not 1 <= int(word) <= most:
        raise ConfigError(f"{word!r} is no whole number from 1 to {most}", where=option)
    return int(word)


def share(option: str, word: str) -> float:
    """A number above 0 and up to 1.

    Raises:
        ConfigError: it is none.
    """
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ConfigError(f"{word!r} is no number above 0 and up to 1", where=option)
    return found
