"""(algorithm, model) -> bundle."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch

from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.plan import BatchPlan, Entry, Graph, Kind, Plan, TensorSpec
from exporters import onnx
from exporters.admission import admit
from exporters.binding import Binding
from exporters.check import Checked, Run, check, generator
from exporters.draws import Draws
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.graph import TracedGraph, trace
from exporters.model import Model
from exporters.ort import PoisonedOnnx

Progress = Callable[[str, Entry], None]
"""Told what is about to be done ("trace", "onnx", "check") to which graph."""


def _onnx(traced: TracedGraph, model: Model) -> tuple[bytes, Run]:
    data = onnx.export(traced, model)
    return data, PoisonedOnnx(data, traced.ports).run


RUNTIMES: Mapping[str, Callable[[TracedGraph, Model], tuple[bytes, Run]]] = MappingProxyType({"onnx": _onnx})
"""Runtime to what makes its graph and runs it for the check."""


def build(
    algorithm: Algorithm,
    model: Model,
    *,
    runtimes: tuple[str, ...] = ("onnx",),
    progress: Progress | None = None,
) -> Bundle:
    """Trace, export and check every graph of an algorithm on a model.

    Args:
        algorithm: its runtime hyperparameters become the plan's defaults.
        model: its parameters become the bundle's initial model.
        runtimes: which runtimes to export for, of :data:`RUNTIMES`.
        progress: told of each stage.

    Raises:
        ConfigError: there is no such runtime.
        ExportError: the model or the algorithm cannot become a graph.
        GraphMismatch: a graph gave other numbers than the eager function.
        PlanError: the algorithm contradicts itself.
    """
    for runtime in runtimes:
        if runtime not in RUNTIMES:
            raise ConfigError(f"there is no runtime {runtime!r}", remedy=f"Choose one of {', '.join(RUNTIMES)}")
    tell = progress or _silent
    admit(model)
    binding = Binding(algorithm, model)
    exported: dict[str, dict[Entry, bytes]] = {}
    golden: dict[Entry, bytes] = {}
    with _one_thread():
        traced = _traced(binding, tell)
        for runtime in runtimes:
            exported[runtime], golden = _exported(runtime, traced, binding, tell)
    plan = plan_of(binding, {entry: graph.ports for entry, graph in traced.items()})
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), exported, golden)


def plan_of(binding: Binding, graphs: dict[Entry, Graph]) -> Plan:
    """The plan of an algorithm on a model, with the borders of its graphs."""
    algorithm, model = binding.algorithm, binding.model
    outputs = graphs[Entry.MODELS].outputs
    return Plan(
        algorithm=type(algorithm).__module__.rpartition(".")[2],
        fixed={name: getattr(algorithm, name) for name in binding.fields("fixed")},
        hyper=binding.hyper,
        server={name: _plain(getattr(algorithm, name)) for name in binding.fields("server")},
        slots=binding.slots,
        graphs=graphs,
        batch=BatchPlan(model.batch, TensorSpec(model.input), TensorSpec((), "int64")),
        model=model.specs,
        models=tuple(dict.fromkeys(port.group for port in outputs if port.kind is Kind.MODEL)),
        personal=model.personal_names,
        inner_steps=algorithm.inner_steps,
        title=model.title,
    )


def _traced(binding: Binding, tell: Progress) -> dict[Entry, TracedGraph]:
    traced = {}
    for entry, function in entry_functions(binding).items():
        tell("trace", entry)
        traced[entry] = trace(function)
    return traced


def _exported(
    runtime: str, traced: Mapping[Entry, TracedGraph], binding: Binding, tell: Progress
) -> tuple[dict[Entry, bytes], dict[Entry, bytes]]:
    """One runtime's graphs, and golden vectors that each of them reproduced."""
    reference = EagerRunner(binding.algorithm, binding.model, dtype=torch.float64)
    graphs: dict[Entry, bytes] = {}
    golden: dict[Entry, bytes] = {}
    for entry, graph in traced.items():
        tell(runtime, entry)
        graphs[entry], run = RUNTIMES[runtime](graph, binding.model)
        tell("check", entry)
        checked = Checked(entry, graph.ports, functools.partial(reference.run, entry))
        golden[entry] = check(checked, run, Draws(binding, generator(entry)), where=runtime)
    return graphs, golden


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The graphs are small: more threads would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plain(value: object) -> float | str:
    return float(value) if isinstance(value, int | float) else str(value)


def _silent(stage: str, entry: Entry) -> None:
    """Nobody asked."""
