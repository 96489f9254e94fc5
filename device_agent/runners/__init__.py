"""Runners: what executes a bundle's graphs.  One module for each runtime, each importing its runtime on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import NDArray

from edgepfl.plan import Entry, Graph

Array: TypeAlias = NDArray[Any]
"""A float32 or int64 array, as the port says."""

Call: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""A graph to call many times: its inputs in the order of the plan's ports to its outputs in theirs.

For one thread at a time, and with the numbers of :meth:`Runner.run`.  Inputs are read where they lie, so they may be
outputs of the last call, or arrays changed in place since.  An output's memory is written again by the call after the
next: take it or copy it before, or call no more and keep it.
"""


class Runner(Protocol):
    """Executes the graphs of one bundle.  Safe to call from several threads."""

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run one graph.

        Args:
            entry: which graph.
            feeds: every input by port name, with the port's shape and dtype; left unchanged.

        Returns:
            Every output by port name, in arrays of their own.

        Raises:
            GraphFailed: the runtime cannot load or run the graph.
            BundleError: the graph's border is not the plan's, or the bundle has no such graph.
        """
        ...


@runtime_checkable
class Repeating(Runner, Protocol):
    """A runner that gains by knowing that a graph is called many times."""

    def repeat(self, entry: Entry) -> Call:
        """One graph, to call many times in memory of the call's own.

        Raises:
            GraphFailed, BundleError: as :meth:`run`; also what is called.
        """
        ...


def repeat(runner: Runner, entry: Entry, graph: Graph) -> Call:
    """A graph to call many times; on a runner that gains nothing by it, each call is a run of its own.

    Args:
        runner: of the bundle.
        entry: which graph.
        graph: its border.
    """
    if isinstance(runner, Repeating):
        return runner.repeat(entry)
    inputs, outputs = ([port.name for port in side] for side in (graph.inputs, graph.outputs))

    def call(arrays: Sequence[Array]) -> Sequence[Array]:
        results = runner.run(entry, dict(zip(inputs, arrays, strict=True)))
        return [results[name] for name in outputs]

    return call
