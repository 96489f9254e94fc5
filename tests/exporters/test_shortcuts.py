from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest

from edgepfl import algorithms
from edgepfl.plan import Entry
from exporters import executorch, onnx, shortcuts
from exporters.binding import Binding
from exporters.build import TABLES
from exporters.entries import entry_functions
from exporters.graph import TracedGraph, trace
from exporters.zoo import mlp

Foreign: TypeAlias = Any
"""Of a package without type information."""

CASES = [
    (onnx, "onnx", "rules_tried_where_they_may_match"),
    (executorch, "executorch", "unchanged_graphs_not_retraced"),
]


def traced(runtime: str) -> TracedGraph:
    function = entry_functions(Binding(algorithms.build("fedavg", {}), mlp(batch=4)))[Entry.STEP]
    return trace(function, TABLES[runtime]())


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize(("module", "runtime", "shortcut"), CASES)
def test_a_shortcut_leaves_the_bytes_as_they_are(
    module: Foreign, runtime: str, shortcut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = traced(runtime)
    short = module.export(graph)
    monkeypatch.setattr(module, shortcut, nothing)
    assert module.export(graph) == short
    assert len(short) > 2000


def test_other_rules_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = importlib.import_module("onnxscript.rewriter._matcher").SimplePatternMatcher
    original, tried = matcher.match, []

    def match(self: Foreign, model: object, graph: object, node: Foreign, **options: Foreign) -> Foreign:
        tried.append((self.pattern.output_nodes[0].op_identifier(), node.op_identifier()))
        return original(self, model, graph, node, **options)

    monkeypatch.setattr(matcher, "match", match)
    onnx.export(traced("onnx"))
    assert tried
    assert all(begins in (None, found) for begins, found in tried)
    assert matcher.match is match


def test_unchanged_graphs_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base = importlib.import_module("executorch.exir.pass_base").ExportPass
    original, calls = base.call, {"with": 0, "without": 0}
    graph = traced("executorch")

    def counting(which: str) -> None:
        def call(self: Foreign, module: Foreign) -> Foreign:
            calls[which] += 1
            return original(self, module)

        monkeypatch.setattr(base, "call", call)

    counting("with")
    executorch.export(graph)
    monkeypatch.setattr(executorch, "unchanged_graphs_not_retraced", nothing)
    counting("without")
    executorch.export(graph)
    assert 0 < calls["with"] < 0.7 * calls["without"]
    assert shortcuts._export_pass() is base
