"""Reading the one pickled file we depend on, without letting it run anything.

A pickle is a program.  This one may call four functions, all of which only build NumPy arrays; a file that names
anything else is refused before the call.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from edgepfl.errors import DataError


def _dtype(name: str, *_: object) -> np.dtype[Any]:
    """A dtype by name; the flags that old pickles pass are of no use to us, and NumPy warns about them."""
    return np.dtype(name, copy=True)


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes; the codec is fixed, so a file cannot choose one."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


_RECONSTRUCT: Final = cast("Callable[..., object]", np.empty(0).__reduce__()[0])

ADMITTED: Final[dict[tuple[str, str], Callable[..., object]]] = {
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # as NumPy 1 wrote it
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # as NumPy 2 does
}
"""What a file may name, and what it gets for it."""


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., object]:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which builds no array") from None

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError(f"it refers to an object outside the file: {pid!r}")


def load_npy(raw: bytes, *, where: str) -> object:
    """The Python object inside a pickled ``.npy`` file of no dimensions, made of containers, numbers and arrays.

    Args:
        raw: the whole file.
        where: what to call it in errors.

    Raises:
        DataError: it is no such file, or names anything but NumPy's array builders.
    """
    try:
        array = _ArraysOnly(_after_header(raw)).load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"it cannot be read: {error}", where=where, remedy="Take the file from the published wheel, unchanged"
        ) from error
    return array.item() if isinstance(array, np.ndarray) and array.shape == () else array


def _after_header(raw: bytes) -> io.BytesIO:
    """The file at the start of its pickle."""
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if version != (1, 0) or shape != () or not dtype.hasobject:
        raise pickle.UnpicklingError(f"it is version {version}, {dtype} of shape {shape}, not 1.0 and one object")
    return stream
