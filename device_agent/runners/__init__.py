"""Runners: what executes a bundle's graphs.  One module for each runtime, each importing its runtime on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from edgepfl.plan import Entry

Array: TypeAlias = NDArray[Any]
"""A float32 or int64 array, as the port says."""


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
