"""A traced graph as an ONNX file: small, and the same bytes for the same graph."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch

from edgepfl.errors import ExportError
from edgepfl.plan import Port
from exporters.blame import module_of
from exporters.fusion import fuse_updates
from exporters.graph import TracedGraph
from exporters.model import Model
from exporters.shortcuts import rules_tried_where_they_may_match

_OPERATOR = re.compile(r"\b(?:aten|prims)[.:]+(\w+)")


def export(traced: TracedGraph, model: Model | None = None) -> bytes:
    """The graph as ONNX, its values named after the ports.

    Tracing has already decomposed the graph, so nothing that torch's translation gets wrong reaches it.

    Args:
        traced: the graph.
        model: what it was traced from; errors then name the module.

    Raises:
        ExportError: an operator has no translation.
    """
    try:
        with _quiet(), _library_parsed_once(), rules_tried_where_they_may_match():
            program = torch.export.export(fuse_updates(traced.module), traced.example)
            exported = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:  # torch raises whatever its passes raise
        raise _untranslated(error, traced, model) from error
    if exported is None:
        raise ExportError("torch.onnx gave no program", where=traced.entry)
    proto = exported.model_proto
    _strip(proto)
    _rename(proto.graph, traced.ports.inputs, traced.ports.outputs)
    onnx.checker.check_model(proto)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's exporter prints and warns about its own internals."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _library_parsed_once() -> Iterator[None]:
    """Half of an export is torch parsing its whole operator library anew, so that is remembered between exports.

    It is torch's own internal, so where it is not as we know it nothing is remembered, and exports only take longer.
    """
    found = _operator_library()
    if found is None:
        yield
        return
    module, parsed = found
    original = module.get_torchlib_ops
    module.get_torchlib_ops = parsed
    try:
        yield
    finally:
        module.get_torchlib_ops = original


@functools.cache
def _operator_library() -> tuple[Any, Callable[[], Any]] | None:
    try:
        registration = importlib.import_module("torch.onnx._internal.exporter._registration")
        module = registration.onnxscript_apis
        return module, functools.cache(module.get_torchlib_ops)
    except (ImportError, AttributeError):
        return None


def _untranslated(error: BaseException, traced: TracedGraph, model: Model | None) -> ExportError:
    operator = _operator(error)
    if operator is None:
        return ExportError(f"torch.onnx failed ({error})", where=traced.entry, remedy="Report it with the model")
    return ExportError(
        f"operator {operator} has no translation to ONNX",
        where=(model and module_of(model, operator)) or f"{traced.entry} graph",
        remedy="Replace the layer that needs it, or add a decomposition to exporters/decompositions.py",
    )


def _operator(error: BaseException | None) -> str | None:
    while error is not None:
        if found := _OPERATOR.search(str(error)):
            return found[1]
        error = error.__cause__
    return None


def _strip(model: onnx.ModelProto) -> None:
    """Drop what is for people only, and would differ from one export to the next."""
    for field in ("doc_string", "metadata_props", "producer_name", "producer_version", "domain", "model_version"):
        model.ClearField(field)
    graph = model.graph
    graph.name = "graph"
    for field in ("doc_string", "metadata_props", "value_info"):
        graph.ClearField(field)
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        for field in ("doc_string", "metadata_props"):
            item.ClearField(field)
    for node in graph.node:
        node.ClearField("name")


def _rename(graph: onnx.GraphProto, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> None:
    """Border values get the ports' names, inner ones short ones."""
    names = {value.name: port.name for value, port in zip(graph.input, inputs, strict=True)}
    names |= {value.name: port.name for value, port in zip(graph.output, outputs, strict=True)}
    inner = [tensor.name for tensor in graph.initializer] + [name for node in graph.node for name in node.output]
    names |= {name: f"v{i}" for i, name in enumerate(name for name in inner if name and name not in names)}
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names[value.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
