"""Work that torch's, onnxscript's and ExecuTorch's exporters do over and over for nothing, left out.

Each is an internal of another package, so where it is not as we know it nothing is left out, and exports only take
longer.  None changes what is exported: the tests compare the bytes.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import fx
from torch.fx.passes.infra.pass_base import PassResult


@contextlib.contextmanager
def rules_tried_where_they_may_match() -> Iterator[None]:
    """Onnxscript tries each of its rewriting rules on each node, and some look through the whole graph every time.

    A rule that begins with another operator cannot match.  Without those, an export takes a quarter less.
    """
    found = _matcher()
    if found is None:
        yield
        return
    matcher, fail = found
    original = matcher.match

    def match(self: Any, model: object, graph: object, node: Any, **options: object) -> Any:  # noqa: ANN401  as the original
        begins = next((first.op_identifier() for first in getattr(self.pattern, "output_nodes", ())), None)
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
        known = (matcher.match, pattern.NodePattern.op_identifier, result.fail)
    except (ImportError, AttributeError):
        return None
    return (matcher, lambda: result().fail("another operator")) if all(known) else None


@contextlib.contextmanager
def unchanged_graphs_not_retraced() -> Iterator[None]:
    """Each of XNNPACK's passes ends by tracing its graph anew, even where it found nothing: a quarter of an export.

    A trace that replaces no operator gives the graph that it was given, so one after another is enough.
    """
    base = _export_pass()
    if base is None:
        yield
        return
    original = base.call
    traced: WeakKeyDictionary[fx.GraphModule, int] = WeakKeyDictionary()

    def call(self: Any, module: fx.GraphModule) -> PassResult:  # noqa: ANN401  as the original
        if module in traced and traced[module] == _state(module.graph) and _traces_only(type(self), base):
            return PassResult(module, modified=True)
        result: PassResult = original(self, module)
        traced[result.graph_module] = _state(result.graph_module.graph)
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


def _state(graph: fx.Graph) -> int:
    """Equal for equal nodes in the same order."""
    return hash(tuple((node.name, node.op, str(node.target), repr((node.args, node.kwargs))) for node in graph.nodes))
