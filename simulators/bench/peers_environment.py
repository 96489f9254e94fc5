"""An environment of its own for each peer, with pinned versions, so that nothing is added to ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepfl.errors import RunError

CACHE = "EDGEPFL_CACHE"
_TAIL = 3  # lines of what pip said


@dataclass(frozen=True)
class Environment:
    """What a peer needs.

    Attributes:
        requirements: as pip has them, pinned.
        pythons: minor versions of Python 3 that it runs on, the one to prefer first.
    """

    requirements: tuple[str, ...]
    pythons: tuple[int, ...]


def folder() -> Path:
    """Where the environments are: ``$EDGEPFL_CACHE/peers``, or ``~/.cache/edgepfl/peers``."""
    given = os.environ.get(CACHE)
    return (Path(given) if given else Path.home() / ".cache" / "edgepfl") / "peers"


def python_of(name: str, wanted: Environment, tell: Callable[[str], None]) -> Path:
    """The interpreter of a peer's environment, which is made first where it is not there yet.

    Args:
        name: of the peer.
        wanted: what it needs.
        tell: told of what takes long.

    Raises:
        RunError: there is no such Python, or the packages cannot be had.
    """
    digest = hashlib.sha256("\n".join(wanted.requirements).encode()).hexdigest()[:8]
    place = folder() / f"{name}-{digest}"
    interpreter = place / "bin" / "python"
    if (place / "ready").exists():
        return interpreter
    tell(f"{name}: installing {', '.join(wanted.requirements)} into {place}; once, and it may take minutes ...")
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _run([_base(name, wanted), "-m", "venv", str(place)], name)
    _run([str(interpreter), "-m", "pip", "install", "--quiet", *wanted.requirements], name)
    (place / "ready").touch()
    return interpreter


def _base(name: str, wanted: Environment) -> str:
    if sys.version_info.minor in wanted.pythons:
        return sys.executable
    for minor in wanted.pythons:
        if (found := shutil.which(f"python3.{minor}")) and _starts(found):
            return found
    versions = " or ".join(f"3.{minor}" for minor in wanted.pythons)
    raise RunError(f"it needs Python {versions}", where=name, remedy="Install one, so that python3.12 is on PATH")


def _starts(interpreter: str) -> bool:
    """Whether it is more than a shim that asks for another version."""
    return subprocess.run([interpreter, "--version"], capture_output=True, check=False).returncode == 0  # noqa: S603  found on PATH


def _run(words: list[str], name: str) -> None:
    done = subprocess.run(words, capture_output=True, check=False, text=True)  # noqa: S603  our own words
    if done.returncode:
        said = " | ".join((done.stderr or done.stdout).strip().splitlines()[-_TAIL:])
        raise RunError(
            f"{' '.join(words[1:4])} failed: {said[-600:]}",
            where=name,
            remedy="A network and 2 GB of disk are needed; where pip has an index of its own, set PIP_INDEX_URL",
        )
