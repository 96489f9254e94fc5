"""(algorithm, model) -> bundle."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch

from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import BatchPlan, Entry, Graph, Kind, Plan
from exporters import executorch, onnx, xnnpack_layers
from exporters.admission import admit
from exporters.binding import Binding
from exporters.check import Checked, Run, check, generator
from exporters.decompositions import Table, complete
from exporters.draws import Draws
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.executorch_runner import PoisonedExecutorch
from exporters.graph import TracedGraph, trace
from exporters.model import Model
from exporters.native import onnx_table
from exporters.ort import PoisonedOnnx

Progress = Callable[[str, Entry], None]
"""Told what is about to be done ("trace", "onnx", "check") to which graph."""


def _onnx(traced: TracedGraph, model: Model) -> tuple[bytes, Run]:
    data = onnx.export(traced, model)
    return data, PoisonedOnnx(data, traced.ports).run


def _executorch(traced: TracedGraph, model: Model) -> tuple[bytes, Run]:
    data = executorch.export(traced, model)
    return data, PoisonedExecutorch(data, traced.ports).run


RUNTIMES: Mapping[str, Callable[[TracedGraph, Model], tuple[bytes, Run]]] = MappingProxyType(
    {"onnx": _onnx, "executorch": _executorch}
)
"""Runtime to what makes its graph and runs it for the check."""

TABLES: Mapping[str, Callable[[], Table]] = MappingProxyType({"onnx": onnx_table, "executorch": xnnpack_layers.table})
"""Runtime to how its graphs are traced: what is fast on one is slow on another."""


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
    borders: dict[Entry, Graph] = {}
    with _one_thread():
        for runtime in runtimes:
            traced = _traced(binding, TABLES.get(runtime, complete)(), tell)
            borders = _same(borders, {entry: graph.ports for entry, graph in traced.items()}, runtime)
            exported[runtime], golden = _exported(runtime, traced, binding, tell)
    plan = plan_of(binding, borders)
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
        batch=BatchPlan(model.batch, model.inputs, model.target),
        model=model.specs,
        models=tuple(dict.fromkeys(port.group for port in outputs if port.kind is Kind.MODEL)),
        personal=model.personal_names,
        inner_steps=algorithm.inner_steps,
        title=model.title,
        served={} if binding.served == model.specs else binding.served,
        dims=binding.dims,
        statistics=model.statistics,
    )


def _same(known: dict[Entry, Graph], borders: dict[Entry, Graph], runtime: str) -> dict[Entry, Graph]:
    """One plan serves every runtime, so their graphs have one border."""
    for entry, border in known.items():
        if border != borders[entry]:
            raise ExportError(
                f"the {runtime} graph has another border than the others", where=entry, remedy="Report it"
            )
    return borders


def _traced(binding: Binding, table: Table, tell: Progress) -> dict[Entry, TracedGraph]:
    traced = {}
    for entry, function in entry_functions(binding).items():
        tell("trace", entry)
        traced[entry] = trace(function, table)
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
