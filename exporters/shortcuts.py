"""Work that torch's, onnxscript's and ExecuTorch's exporters do over and over for nothing, left out.

Each is an internal of another package, so where it is not as we know it nothing is left out, and exports only take
longer.  None changes what is exported: the tests compare the bytes.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from torch import fx

from exporters.graph import frozen

_GRAPH = "edgepfl_retraced"
"""Where a module keeps what its graph was when it was last traced."""


@contextlib.contextmanager
def rules_tried_where_they_may_match() -> Iterator[None]:
    """Onnxscript tries each of its rewriting rules on each node, and some look through the whole graph every time.

    A rule that begins with another operator cannot match.  Without those, an export of a deep network takes half as long.
    """
    found = _matcher()
    if found is None:
        yield
        return
    matcher, fail = found
    original = matcher.match

    def match(self: Any, model: object, graph: object, node: Any, **options: object) -> Any:  # noqa: ANN401  as the original
        begins = self.pattern.output_nodes[0].op_identifier()
        if begins is not None and begins != node.op_identifier():
            return fail()
        return original(self, model, graph, node, **options)

    matcher.match = match
    try:
        yield
    finally:
        matcher.match = original


def _matcher() -> tuple[Any, Callable[[], Any]] | None:
    """The matcher, and what makes a failed match."""
    try:
        matcher = importlib.import_module("onnxscript.rewriter._matcher").SimplePatternMatcher
        result = importlib.import_module("onnxscript.rewriter._basics").MatchResult
        pattern = importlib.import_module("onnxscript.rewriter._pattern_ir")
        known = (matcher.match, pattern.NodePattern.op_identifier, pattern.GraphPattern.output_nodes, result.fail)
    except (ImportError, AttributeError):
        return None
    return (matcher, lambda: result().fail("another operator")) if all(known) else None


@contextlib.contextmanager
def unchanged_graphs_not_retraced() -> Iterator[None]:
    """Each of XNNPACK's passes ends by tracing its graph anew, even where it found nothing to do: half of an export.

    A trace that replaces no operator gives the graph that it was given, so one after another is enough.
    """
    base = _export_pass()
    if base is None:
        yield
        return
    original = base.call

    def call(self: Any, module: fx.GraphModule) -> Any:  # noqa: ANN401  as the original
        if _traces_only(type(self), base) and module.meta.get(_GRAPH) == _state(module.graph):
            return fx.passes.infra.pass_base.PassResult(module, True)
        result = original(self, module)
        result.graph_module.meta[_GRAPH] = _state(result.graph_module.graph)
        return result

    base.call = call
    try:
        yield
    finally:
        base.call = original


def _export_pass() -> Any:  # noqa: ANN401  a class without type information
    try:
        found = importlib.import_module("executorch.exir.pass_base").ExportPass
        known = (found.call, found.call_operator, found.placeholder, found.output)
    except (ImportError, AttributeError):
        return None
    return found if all(known) else None


def _traces_only(kind: type, base: type) -> bool:
    """Whether the pass replaces nothing while it traces."""
    return all(
        getattr(kind, name) is getattr(base, name)
        for name in dir(base)
        if name != "call" and callable(getattr(base, name)) and not name.startswith("__")
    )


def _state(graph: fx.Graph) -> Hashable:
    """Equal for the same nodes in the same order."""
    return tuple((node, node.name, node.op, node.target, frozen(node.args), frozen(node.kwargs)) for node in graph.nodes)
