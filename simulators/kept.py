"""What a long command measured, as a file that it goes on from when it was cut off."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from edgepfl.errors import ConfigError

T = TypeVar("T")


def read(file: Path, kind: type[T], what: str) -> T | None:
    """What a file holds; None where there is no file.

    Raises:
        ConfigError: it is not ``what`` it should be.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"it {what} ({error})", where=str(file), remedy="Name another file") from error


def write(value: object, file: Path) -> None:
    """Write the file anew, as a whole or not at all."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    fresh.replace(file)
