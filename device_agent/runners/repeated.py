"""One graph, called again and again in memory that stays: two sets of outputs, written in turn.

A call reads what the call before it wrote where it lies, and writes into the other set, so parameters are neither
copied nor allocated between steps.  An input that is the same array as two calls ago needs nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from device_agent.runners import Array
from edgepfl.errors import GraphFailed
from edgepfl.plan import Entry, Graph


class Binding(Protocol):
    """Calls of one graph that all write the same memory.  For one thread at a time."""

    def put(self, index: int, array: Array) -> None:
        """Read an input from ``array``'s own memory, which the caller keeps, in every call from now on."""
        ...

    def run(self) -> None:
        """Run the graph once.

        Raises:
            GraphFailed: the runtime could not.
        """
        ...


Bind = Callable[[Sequence[Array]], Binding]
"""Makes a binding that writes these arrays."""


class Repeated:
    """See :data:`device_agent.runners.Call`.

    Args:
        entry: which graph, for errors.
        graph: its border.
        bind: the runtime's part.
    """

    def __init__(self, entry: Entry, graph: Graph, bind: Bind) -> None:
        self._where = f"graph {entry}"
        self._names = [port.name for port in graph.inputs]
        self._kinds = [(port.spec.shape, np.dtype(port.spec.dtype)) for port in graph.inputs]
        self._now, self._next = _Side(graph, bind), _Side(graph, bind)

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See :data:`device_agent.runners.Call`."""
        side = self._now
        for index, (array, given) in enumerate(zip(inputs, side.given, strict=True)):
            if array is not given:
                self._check(index, array)
                side.put(index, array)
        side.binding.run()
        self._now, self._next = self._next, side
        return side.outputs

    def _check(self, index: int, array: Array) -> None:
        shape, dtype = self._kinds[index]
        if array.shape != shape or array.dtype != dtype:
            found, wanted = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}"
            raise GraphFailed(f"it takes {wanted} for {self._names[index]!r}, not {found}", where=self._where)


class _Side:
    """One of the two sets of outputs, and what the call that writes it reads."""

    def __init__(self, graph: Graph, bind: Bind) -> None:
        self.outputs = [np.empty(port.spec.shape, port.spec.dtype) for port in graph.outputs]
        self.binding = bind(self.outputs)
        self.given: list[Array | None] = [None] * len(graph.inputs)  # None: to be bound anew in the next call
        self._read = list(self.given)
        self._own = {id(array) for array in self.outputs}

    def put(self, index: int, array: Array) -> None:
        # A graph may write an output before it has read every input, so none of its own may be among them.
        in_place = array.flags.c_contiguous and not {id(array), id(array.base)} & self._own
        kept = array if in_place else array.copy()
        self.binding.put(index, kept)
        self._read[index] = kept
        self.given[index] = array if in_place else None
