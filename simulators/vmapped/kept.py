"""The personal state of a whole fleet: every device's KEEP slots, in memory or in files that are mapped into it.

On disk there is one NumPy file for each tensor of each slot, ``(devices, ...)``, as long as the fleet is large but
sparse: a device that never took part occupies nothing, and ``present.npy`` says which did.  Only the rows of a chunk
are ever in memory, so the fleet may be larger than that.

A round writes its rows beside them first, into ``pending``; they go to their places once the round is committed.  What
a killed process left there is put in place, or dropped, when the run goes on: see :mod:`simulators.vmapped.folder`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from device_agent.runners import Array
from edgepfl.errors import StoreError
from edgepfl.plan import SlotPlan
from edgepfl.tree import Tree, Trees

Places: TypeAlias = NDArray[np.int64]
"""Numbers of devices, in the order of their names in the fleet."""

Bits: TypeAlias = NDArray[np.bool_]

_PLACES = "places"


class Keeping(Protocol):
    """Where the KEEP slots are."""

    def read(self, places: Places) -> tuple[Trees, Bits]:
        """The KEEP slots of some devices, NumPy, devices first, and which of them have any; the others' are zeros."""
        ...

    def write(self, number: int, places: Places, trees: Trees) -> None:
        """Note the KEEP slots of some devices after a round; nothing changes before :meth:`commit`."""
        ...

    def commit(self, number: int) -> None:
        """The round counts: what was noted of it is what the devices have; notes of other rounds are dropped."""
        ...

    def discard(self) -> None:
        """Drop all notes: the round that made them failed."""
        ...


class InMemory:
    """Arrays of this process; memory is taken by the devices that took part alone, where the system is lazy.

    Args:
        slots: the plan's KEEP slots.
        devices: how many the fleet has.
    """

    def __init__(self, slots: Mapping[str, SlotPlan], devices: int) -> None:
        self._arrays = {
            slot: {name: np.zeros((devices, *spec.shape), spec.dtype) for name, spec in resolved.tensors.items()}
            for slot, resolved in slots.items()
        }
        self._present = np.zeros(devices, np.bool_)
        self._noted: list[tuple[int, Places, Trees]] = []

    def read(self, places: Places) -> tuple[Trees, Bits]:
        """See :class:`Keeping`."""
        trees = {slot: Tree({n: a[places] for n, a in arrays.items()}) for slot, arrays in self._arrays.items()}
        return trees, self._present[places]

    def write(self, number: int, places: Places, trees: Trees) -> None:
        """See :class:`Keeping`."""
        self._noted.append((number, places, trees))

    def commit(self, number: int) -> None:
        """See :class:`Keeping`."""
        for noted, places, trees in self._noted:
            if noted == number:
                self._present[places] = True
                for slot, tree in trees.items():
                    for name, array in tree.items():
                        self._arrays[slot][name][places] = array
        self.discard()

    def discard(self) -> None:
        """See :class:`Keeping`."""
        self._noted.clear()


class OnDisk:
    """Files of a directory, mapped into memory while some of their rows are read or written.

    Args:
        slots: the plan's KEEP slots.
        devices: how many the fleet has.
        folder: of the files; made if it is missing.

    Raises:
        StoreError: the files cannot be made, or are another fleet's.
    """

    def __init__(self, slots: Mapping[str, SlotPlan], devices: int, folder: Path) -> None:
        self._slots = {slot: resolved.tensors for slot, resolved in slots.items()}
        self._folder, self._pending = folder, folder / "pending"
        self._pending.mkdir(parents=True, exist_ok=True)
        self._present = folder / "present.npy"
        _made(self._present, (devices,), np.dtype(np.bool_))
        for slot, tensors in self._slots.items():
            for name, spec in tensors.items():
                _made(self._file(slot, name), (devices, *spec.shape), np.dtype(spec.dtype))

    def read(self, places: Places) -> tuple[Trees, Bits]:
        """See :class:`Keeping`."""
        trees = {
            slot: Tree({name: _rows(self._file(slot, name), places) for name in tensors})
            for slot, tensors in self._slots.items()
        }
        return trees, _rows(self._present, places)

    def write(self, number: int, places: Places, trees: Trees) -> None:
        """See :class:`Keeping`."""
        tensors = {
            f"{slot}/{name}": np.ascontiguousarray(a) for slot, tree in trees.items() for name, a in tree.items()
        }
        file = self._pending / f"{number:08}-{int(places[0]):08}.safetensors"
        save_file({**tensors, _PLACES: places}, file)
        _sync(file)

    def commit(self, number: int) -> None:
        """See :class:`Keeping`."""
        for file in sorted(self._pending.glob("*.safetensors")):
            if int(file.name.partition("-")[0]) == number:
                self._put(load_file(file))
        self.discard()  # only now: until all rows are in place, a process that was killed begins with the first again

    def discard(self) -> None:
        """See :class:`Keeping`."""
        for file in self._pending.iterdir():
            file.unlink()

    def _put(self, found: dict[str, Array]) -> None:
        places = found.pop(_PLACES)
        for key, array in found.items():
            slot, _, name = key.partition("/")
            _set_rows(self._file(slot, name), places, array)
        _set_rows(self._present, places, np.ones(len(places), np.bool_))

    def _file(self, slot: str, name: str) -> Path:
        return self._folder / f"{slot}.{name or 'value'}.npy"


def keeping(slots: Mapping[str, SlotPlan], devices: Sequence[str], folder: Path | None) -> Keeping:
    """Where the KEEP slots of these devices are to be: in a folder, or in memory."""
    return InMemory(slots, len(devices)) if folder is None else OnDisk(slots, len(devices), folder)


def _made(file: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Make a file of zeros, or see that it is the one that is wanted."""
    if not file.exists():
        fresh = file.with_suffix(".new")
        np.lib.format.open_memmap(fresh, "w+", dtype, shape).flush()
        fresh.replace(file)
        return
    found = np.load(file, mmap_mode="r")
    if found.shape != shape or found.dtype != dtype:
        raise StoreError(
            f"it holds {found.dtype}{list(found.shape)}, and {dtype}{list(shape)} is wanted",
            where=str(file),
            remedy="Name another directory",
        )


def _rows(file: Path, places: Places) -> Array:
    """A copy of some rows; the file stays mapped no longer than that."""
    return np.array(np.load(file, mmap_mode="r")[places])


def _set_rows(file: Path, places: Places, rows: Array) -> None:
    mapped = np.load(file, mmap_mode="r+")
    mapped[places] = rows
    mapped.flush()


def _sync(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
