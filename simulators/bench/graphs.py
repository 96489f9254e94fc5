"""Bundles of which only the step's graph was exported: a benchmark of steps needs no other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.plan import Entry
from exporters import executorch
from exporters.admission import admit
from exporters.binding import Binding
from exporters.build import RUNTIMES, TABLES, plan_of
from exporters.check import Checked, Run, check, generator
from exporters.decompositions import Table, complete
from exporters.draws import Draws
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.executorch_runner import PoisonedExecutorch
from exporters.graph import TracedGraph, trace
from exporters.model import Model


def _portable(traced: TracedGraph, model: Model) -> tuple[bytes, Run]:
    data = executorch.export(traced, model, delegate=False)
    return data, PoisonedExecutorch(data, traced.ports).run


Export = Callable[[TracedGraph, Model], tuple[bytes, Run]]

KINDS: Mapping[str, tuple[str, Callable[[], Table], Export]] = MappingProxyType(
    {
        **{runtime: (runtime, TABLES[runtime], export) for runtime, export in RUNTIMES.items()},
        "portable": ("executorch", complete, _portable),
    }
)
"""Kind of graphs to the runtime that runs them, how they are traced, and their export."""


def step_bundle(algorithm: Algorithm, model: Model, kind: str) -> Bundle:
    """A bundle with the step's graph alone, checked as every graph is.

    Raises:
        EdgepflError: the step cannot be exported, or computes something else.
    """
    runtime, table, export = KINDS[kind]
    admit(model)
    binding = Binding(algorithm, model)
    traced = {entry: trace(function, table()) for entry, function in entry_functions(binding).items()}
    step = traced[Entry.STEP]
    data, run = export(step, model)
    reference = EagerRunner(algorithm, model, dtype=torch.float64)
    checked = Checked(Entry.STEP, step.ports, functools.partial(reference.run, Entry.STEP))
    check(checked, run, Draws(binding, generator(Entry.STEP)), where=kind)
    plan = plan_of(binding, {entry: graph.ports for entry, graph in traced.items()})
    graphs = {entry: data if entry is Entry.STEP else b"" for entry in traced}  # a runner loads what it is asked for
    return Bundle(plan, model.parameters.map(torch.Tensor.numpy), {runtime: graphs}, {})
