"""A traced graph as an ExecuTorch program (``.pte``): small, and the same bytes for the same graph.

executorch is imported when a graph is exported, not before: it takes seconds, and a bundle may do without.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from edgepfl.errors import ExportError
from exporters.blame import module_of
from exporters.fusion import fuse_updates
from exporters.graph import TracedGraph
from exporters.model import Model
from exporters.shortcuts import unchanged_graphs_not_retraced
from exporters.xnnpack import rewritten

PYBINDINGS = "executorch.extension.pybindings.portable_lib"
"""The official Python runtime."""

METHOD = "forward"
"""The program's one method; its inputs and outputs are in the order of the ports."""

_OPERATOR = re.compile(r"\b(?:aten|prims|dim_order_ops)(?:::|[.:])(\w+)")


def export(traced: TracedGraph, model: Model | None = None, *, delegate: bool = True) -> bytes:
    """The graph as a program with one method, lowered to XNNPACK as far as XNNPACK goes.

    Args:
        traced: the graph; traced with :func:`exporters.xnnpack_layers.table` it is fastest, any other is right too.
        model: what it was traced from; errors then name the module.
        delegate: whether XNNPACK gets anything at all; without it everything runs on ExecuTorch's own kernels.

    Raises:
        ExportError: an operator has no kernel in the runtime, or executorch is not installed.
    """
    with quiet(), _unburdened(), unchanged_graphs_not_retraced():
        try:
            module = fuse_updates(traced.module)
            module = rewritten(module, traced.example) if delegate else module
            program = _lowered(module, traced.example, delegate=delegate)
        except ExportError:
            raise
        except Exception as error:  # executorch raises whatever its passes raise
            raise _untranslated(error, traced, model) from error
        missing = _operators(program) - _kernels()
    if missing:
        raise _unknown(min(missing), traced, model)
    return bytes(program.buffer)


def load(module: str) -> Any:  # noqa: ANN401  a module without type information
    """One of executorch's modules.

    Raises:
        ExportError: executorch is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(
            f"executorch cannot be imported ({error})",
            where="runtime executorch",
            remedy="pip install executorch, or leave executorch out of --runtimes",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Executorch prints, logs and warns about its own internals."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _unburdened() -> Iterator[None]:
    """A quarter of an export is Python's collector, and torch copying where each node came from at every pass.

    The latter is torch's own internal, so where it is not as we know it exports only take longer.
    """
    origin = getattr(importlib.import_module("torch.fx.traceback"), "NodeSource", None)
    collecting = gc.isenabled()
    gc.disable()
    try:
        if origin is None or hasattr(origin, "__deepcopy__"):
            yield
            return
        origin.__deepcopy__ = lambda source, _: source  # nothing changes it once it is made
        try:
            yield
        finally:
            del origin.__deepcopy__
    finally:
        if collecting:
            gc.enable()


def _lowered(module: fx.GraphModule, example: tuple[torch.Tensor, ...], *, delegate: bool) -> Any:  # noqa: ANN401  executorch's program manager
    exir = load("executorch.exir")
    partitioner = load("executorch.backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner
    memory = load("executorch.exir.passes").MemoryPlanningPass
    program = torch.export.export(module, example)
    partitioners = [partitioner(force_non_static_weights_for_f32_linear=True)] if delegate else []
    edge = exir.to_edge_transform_and_lower(program, partitioner=partitioners)
    return edge.to_executorch(
        exir.ExecutorchBackendConfig(
            # the agent's own buffers are read and written in place
            memory_planning_pass=memory(alloc_graph_input=False, alloc_graph_output=False),
        )
    )


def _operators(program: Any) -> set[str]:  # noqa: ANN401  executorch's program manager
    """The kernels that the program calls outside the delegate."""
    plan = program.executorch_program.execution_plan[0]
    return {f"{operator.name}.{operator.overload}".removesuffix(".") for operator in plan.operators}


def _kernels() -> set[str]:
    """The kernels that the official runtime has."""
    return set(load(PYBINDINGS)._get_operator_names())  # noqa: SLF001  there is no public list


def _untranslated(error: BaseException, traced: TracedGraph, model: Model | None) -> ExportError:
    cause: BaseException | None = error
    while cause is not None:
        if found := _OPERATOR.search(str(cause)):
            return _unknown(found[0], traced, model)
        cause = cause.__cause__
    return ExportError(f"executorch failed ({error})", where=f"{traced.entry} graph", remedy="Report it with the model")


def _unknown(kernel: str, traced: TracedGraph, model: Model | None) -> ExportError:
    found = _OPERATOR.search(kernel)
    operator = found[1] if found else kernel
    return ExportError(
        f"operator {operator} has no kernel in runtime executorch",
        where=(model and module_of(model, operator)) or f"{traced.entry} graph",
        remedy="Replace the layer that needs it, add a rule to exporters/xnnpack.py, or export for onnx alone",
    )
