"""From received bytes to where uploads are folded: nothing is copied on a CPU, and once on the way to a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgepfl.tree import Tree, Trees


def room_for(device: torch.device | str) -> Callable[[int], bytearray | memoryview]:
    """What gives memory to read uploads into, so many bytes at a time; a GPU reads it without a copy in between."""
    if torch.device(device).type != "cuda":
        return bytearray
    return lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().data


class Transfer:
    """Brings uploads to a device, one after the other, while the next is read from the disk.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._copied: torch.cuda.Event | None = None
        self._held: list[Tensor] = []  # what is being copied from; it must not be used again until then

    def __call__(self, trees: Trees) -> Trees:
        """NumPy trees as torch trees on the device; on a CPU they are views."""
        self.wait()
        moved = {name: tree.map(self._moved) for name, tree in trees.items()}
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch left it untyped
            self._copied.record(torch.cuda.current_stream(self._device))
        return moved

    def wait(self) -> None:
        """Until the device has all it was given."""
        if self._copied is not None:
            self._copied.synchronize()
        self._copied = None
        self._held.clear()

    def _moved(self, array: object) -> Tensor:
        tensor = torch.as_tensor(array)
        if self._device.type != "cuda":
            return tensor.to(self._device)
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        self._held.append(pinned)
        return pinned.to(self._device, non_blocking=True)


class Rows:
    """One tree of each device, in the order in which they are put: device first.  It is mutable.

    Args:
        expected: how many there will be; memory that is never written costs nothing.
    """

    def __init__(self, expected: int) -> None:
        self._expected = max(expected, 1)
        self._count = 0
        self._store: Tree | None = None

    def put(self, tree: Tree) -> None:
        """Take a copy, as float32."""
        if self._store is None:
            self._store = tree.map(lambda x: x.new_empty((self._expected, *x.shape), dtype=torch.float32))
        elif self._count == self._expected:
            self._store = self._store.map(lambda rows: torch.cat([rows, torch.empty_like(rows)]))
            self._expected *= 2
        self._store.zip(lambda rows, x: rows[self._count].copy_(x), tree)
        self._count += 1

    def taken(self, order: list[int]) -> Tree:
        """The rows in this order; a view where it is the one in which they were put."""
        store = Tree({}) if self._store is None else self._store
        if order == list(range(self._count)):
            return store.map(lambda rows: rows[: self._count])
        return store.map(lambda rows: rows[order])
