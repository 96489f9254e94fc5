"""The native ExecuTorch library: where it is found, and its C interface (``native/edgepfl_executorch.h``) in Python.

``edgepfl build-runner`` makes a folder with everything in it; a board needs no more than a copy of that folder.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepfl.errors import ConfigError, GraphFailed

ABI = 1
"""EDGEPFL_ABI of the header that this module was written for."""

FOLDER_VARIABLE = "EDGEPFL_RUNNER"
NAME = "libedgepfl_executorch.so"
STEP = "edgepfl_step"
"""The library, and the program that runs a graph by itself, in their folder."""

REMEDY = "Build it with: edgepfl build-runner"

_INPUT, _OUTPUT = 0, 1
_RANK_LIMIT = 8
_DTYPES = {4: "int64", 6: "float32"}


def default_folder(machine: str = "") -> Path:
    """Where ``build-runner`` puts the library of a machine's architecture, and an agent looks for it.

    ``$EDGEPFL_RUNNER`` if set, else ``edgepfl/executorch-MACHINE`` in the user's cache directory.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "edgepfl" / f"executorch-{machine or platform.machine()}"


@dataclass(frozen=True)
class Border:
    """One input or output of a program.

    Attributes:
        dtype: "float32", "int64", or the number of another type of ExecuTorch's.
        shape: its dimensions.
        nbytes: of its elements.
        direct: whether it is read or written in place, without a copy in each run.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    direct: bool


class _Port(ctypes.Structure):
    """``edgepfl_port``."""

    _fields_ = (
        ("type", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * _RANK_LIMIT),
        ("bytes", c_uint64),
        ("direct", c_int32),
    )


class Program:
    """A loaded graph.  For one thread at a time.

    Attributes:
        inputs: its inputs, in order.
        outputs: its outputs, in order.
    """

    def __init__(self, functions: ctypes.CDLL, data: bytes, threads: int) -> None:
        self._functions = functions
        self._data = data  # the program reads it as long as it lives
        self._handle = functions.edgepfl_load(data, len(data), threads)
        if not self._handle:
            raise GraphFailed(_reason(functions))
        self.inputs = self._side(_INPUT)
        self.outputs = self._side(_OUTPUT)
        self._reads = _Pointers(self.inputs)
        self._writes = _Pointers(self.outputs)

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run it once.

        Args:
            inputs: the address of each input's elements, which are left unchanged.
            outputs: of memory for each output, which overlaps no input.

        Raises:
            GraphFailed: the runtime could not run it.
        """
        self._reads.addresses[:] = [*inputs]
        self._writes.addresses[:] = [*outputs]
        if self._functions.edgepfl_run(self._handle, *self._reads.arguments, *self._writes.arguments) != 0:
            raise GraphFailed(_reason(self._functions))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._functions.edgepfl_destroy(self._handle)

    def _side(self, side: int) -> tuple[Border, ...]:
        return tuple(self._border(side, i) for i in range(self._functions.edgepfl_ports(self._handle, side)))

    def _border(self, side: int, index: int) -> Border:
        port = _Port()
        if self._functions.edgepfl_describe(self._handle, side, index, byref(port)) != 0:
            raise GraphFailed(_reason(self._functions))
        dtype = _DTYPES.get(port.type, f"ExecuTorch's type {port.type}")
        return Border(dtype, tuple(port.shape[: port.rank]), port.bytes, bool(port.direct))


class _Pointers:
    """One side's arguments of ``edgepfl_run``, made once."""

    def __init__(self, ports: Sequence[Border]) -> None:
        self.addresses = (c_void_p * len(ports))()
        sizes = (c_uint64 * len(ports))(*[port.nbytes for port in ports])
        self.arguments = (self.addresses, sizes, len(ports))


class Library:
    """The library, loaded into this process.

    Args:
        folder: where ``edgepfl build-runner`` put it.

    Raises:
        ConfigError: it is not there, for another machine, or of another edgepfl.
    """

    def __init__(self, folder: Path) -> None:
        self.step = folder / STEP
        path = folder / NAME
        try:
            self._functions = ctypes.CDLL(str(path.absolute()))
        except OSError as error:
            raise ConfigError(
                f"the ExecuTorch library cannot be loaded ({error})", where=str(path), remedy=REMEDY
            ) from error
        try:
            abi = self._functions.edgepfl_abi()
        except AttributeError:
            abi = None
        if abi != ABI:
            what = f"the library speaks version {abi} of its interface, and this edgepfl {ABI}"
            raise ConfigError(what, where=str(path), remedy=REMEDY)
        _declare(self._functions)
        self.version = self._functions.edgepfl_version().decode()
        """ "executorch VERSION, MACHINE, COMPILER"."""

    def load(self, data: bytes, threads: int = 1) -> Program:
        """A program from a ``.pte`` file's bytes.

        Args:
            data: the file.
            threads: to run it on; those programs of a process that have more than one must have the same number.

        Raises:
            GraphFailed: it is damaged, needs what this build of ExecuTorch does not have, or other programs have
                another number of threads.
        """
        return Program(self._functions, data, threads)


def _reason(functions: ctypes.CDLL) -> str:
    return str(functions.edgepfl_error().decode(errors="replace"))


def _declare(functions: ctypes.CDLL) -> None:
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "version": (c_char_p, ()),
        "error": (c_char_p, ()),
        "load": (c_void_p, (c_char_p, c_size_t, c_uint32)),
        "ports": (c_int64, (c_void_p, c_int32)),
        "describe": (c_int32, (c_void_p, c_int32, c_size_t, POINTER(_Port))),
        "run": (c_int32, (c_void_p, *(c_void_p, c_void_p, c_size_t) * 2)),
        "destroy": (None, (c_void_p,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, f"edgepfl_{name}")
        function.restype, function.argtypes = result, arguments
