"""Graphs that algorithms have in common, each exported once in a test session."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from _once import once

from exporters import executorch, onnx
from exporters.graph import TracedGraph
from exporters.model import Model


@contextmanager
def graphs_exported_once() -> Iterator[None]:
    """In here, a graph that was exported before is the same bytes again, without another export.

    Four in ten of the algorithms' graphs are another algorithm's too: nearly all evaluate and predict alike.  Every
    bundle is still traced, and each of its graphs checked against its own eager function.
    """
    originals = {exporter: exporter.export for exporter in (onnx, executorch)}
    for exporter, original in originals.items():
        exporter.export = _remembering(exporter, original)  # type: ignore[attr-defined]  # as a module's attribute
    try:
        yield
    finally:
        for exporter, original in originals.items():
            exporter.export = original  # type: ignore[attr-defined]  # likewise


def _remembering(
    exporter: ModuleType, export: Callable[[TracedGraph, Model], bytes]
) -> Callable[[TracedGraph, Model], bytes]:
    return lambda traced, model: once(f"{exporter.__name__} {_identity(traced)}", lambda: export(traced, model))


def _identity(traced: TracedGraph) -> str:
    """The same for the same graph: its operators, its constants, its border and what it was traced with."""
    constants = {
        node.target: operator.attrgetter(str(node.target))(traced.module).detach().numpy()
        for node in traced.module.graph.nodes
        if node.op == "get_attr"
    }
    stored = {name: (array.dtype, array.shape, array.tobytes()) for name, array in constants.items()}
    example = [(each.shape, each.dtype) for each in traced.example]
    return repr((traced.module.code, stored, traced.ports, example))
