"""What a runner takes from its bundle: the graphs of its own runtime."""

from __future__ import annotations

from edgepfl.bundle import Bundle
from edgepfl.errors import BundleError
from edgepfl.plan import Entry, Graph


def require_graphs(bundle: Bundle, runtime: str) -> None:
    """Refuse a bundle for other runtimes.

    Raises:
        BundleError: it has no graphs for this one.
    """
    if runtime not in bundle.graphs:
        have = ", ".join(sorted(bundle.graphs)) or "none"
        raise BundleError(f"no {runtime} graphs, only {have}", remedy="Export the bundle for this runtime too")


def graph_of(bundle: Bundle, runtime: str, entry: Entry) -> tuple[Graph, bytes]:
    """A graph's border by the plan, and its file.

    Raises:
        BundleError: the bundle has no such graph.
    """
    graph = bundle.plan.graphs.get(entry)
    data = bundle.graphs[runtime].get(entry)
    if graph is None or data is None:
        raise BundleError("the bundle has no such graph", where=f"graph {entry}")
    return graph, data
