"""How good the devices' models are, many at once: :func:`device_agent.evaluate.evaluate`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from device_agent.data import Batch, held_out
from device_agent.memory import diverged
from edgepfl.plan import Entry, Kind
from edgepfl.seeds import derive
from edgepfl.tree import Tree
from simulators.report.summary import Summary, summary
from simulators.vmapped import chunk
from simulators.vmapped.chunk import Start
from simulators.vmapped.graphs import Graphs
from simulators.vmapped.memory import Memory
from simulators.vmapped.training import Numbers

_MODEL, _METRIC = Kind.MODEL.value, Kind.METRIC.value


@dataclass(frozen=True)
class Evaluated:
    """How good some devices' models are on their own test data.

    Attributes:
        devices: which, those without test data left out.
        metrics: "loss.MODEL", "accuracy.MODEL" or what else the model has, of each device, ``(devices,)``.
    """

    devices: tuple[str, ...]
    metrics: Mapping[str, Numbers]

    def of(self, device: str) -> dict[str, float]:
        """One device's metrics."""
        place = self.devices.index(device)
        return {name: float(values[place]) for name, values in self.metrics.items()}

    def summary(self, metric: str) -> Summary:
        """Mean, worst decile and best over the devices, of a metric of which more is better.

        Raises:
            KeyError: there is no such metric.
            DataError: no device was evaluated.
        """
        return summary(self.metrics[metric].tolist())


def joined(parts: list[Evaluated]) -> Evaluated:
    """Several evaluations as one."""
    parts = [part for part in parts if part.devices]
    names = parts[0].metrics if parts else {}
    return Evaluated(
        tuple(device for part in parts for device in part.devices),
        {name: np.concatenate([part.metrics[name] for part in parts]) for name in names},
    )


def evaluate(graphs: Graphs, model: Tree, start: Start, count: int, tune_steps: int) -> Evaluated:
    """Begin, tune, and evaluate each model on the test data.

    Args:
        graphs: of the algorithm.
        model: the initial model, torch.
        start: what the devices have; unchanged.
        count: how many of them count; the others fill the chunk.
        tune_steps: minibatch steps of ``tune``, where the algorithm has it.

    Raises:
        ExportError: it cannot be run for many devices at once.
        GraphFailed: a device's numbers are not finite.
    """
    memory = chunk.opened(graphs, model, start)
    device = start.fresh.device
    if graphs.has(Entry.TUNE):
        seeds = [derive(seed, "tune") for seed in start.seeds]
        for _ in chunk.steps_of(graphs, memory, start, tune_steps, seeds, device):
            graphs.run(Entry.TUNE, memory)
    graphs.run(Entry.MODELS, memory)
    tested = np.array([place < count and len(e.test_y) > 0 for place, e in enumerate(start.examples)])
    found: dict[str, Numbers] = {}
    for name in graphs.plan.models if tested.any() else ():
        means = _means(graphs, memory, name, start)
        found |= {f"{metric}.{name}": values[tested] for metric, values in means.items()}
    return Evaluated(tuple(n for n, has in zip(start.devices, tested, strict=True) if has), found)


def _means(graphs: Graphs, memory: Memory, name: str, start: Start) -> dict[str, Numbers]:
    """Each metric of one of the models, over each device's test data; a device without any has 0."""
    plan, device = graphs.plan, start.fresh.device
    for tensor in plan.predictor:
        memory.own[_MODEL, "", tensor] = memory.own[_MODEL, name, tensor]
    metrics = [port.group for port in plan.graphs[Entry.EVALUATE].outputs if port.kind is Kind.METRIC]
    sums = dict.fromkeys(metrics, torch.zeros(start.size, dtype=torch.float64, device=device))
    for batch in _test_batches(graphs, start):
        chunk.put(memory, batch, device)
        graphs.run(Entry.EVALUATE, memory)
        sums = {metric: total + memory.own[_METRIC, metric, ""] for metric, total in sums.items()}
    weight = sums.pop("weight").clamp(min=1.0)
    means: dict[str, Numbers] = {metric: (total / weight).cpu().numpy() for metric, total in sums.items()}
    for metric, values in means.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise diverged(f"{metric} of {name} is {values[bad[0]]} on {start.devices[bad[0]]}", start.number)
    return means


def _test_batches(graphs: Graphs, start: Start) -> Iterator[Batch]:
    """The test data of every device, minibatch by minibatch; where one has no more, rows that do not count."""
    plan = graphs.plan.batch
    nothing = Batch(
        tuple(np.zeros((plan.size, *spec.shape), spec.dtype) for spec in plan.x),
        np.zeros((plan.size, *plan.y.shape), plan.y.dtype),
        np.zeros(plan.size, np.float32),
    )
    each = (held_out(examples, plan.size) for examples in start.examples)
    for batches in itertools.zip_longest(*each, fillvalue=nothing):
        yield chunk.stacked_batches(batches, plan)
