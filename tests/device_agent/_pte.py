"""The graphs of ``_graphs`` as ExecuTorch programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import torch
from _graphs import GRAPHS, bundle
from torch import Tensor, nn

from edgepfl.bundle import Bundle
from edgepfl.plan import Entry, Graph
from exporters.executorch import load, quiet


def _target(x: Tensor, weight: Tensor) -> Tensor:
    return (x * weight.unsqueeze(1)).sum(0) / weight.sum()


def _step(x: Tensor, lr: Tensor, batch_x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    gradient = x - _target(batch_x, weight)
    return x - gradient * lr, gradient.abs().sum()


def _evaluate(params: Tensor, batch_x: Tensor, batch_y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    distance = (params - _target(batch_x, weight)).abs().sum()
    return distance * weight.sum(), (batch_y.to(torch.float32) * weight).sum(), weight.sum()


FUNCTIONS: dict[Entry, Callable[..., tuple[Tensor, ...]]] = {
    Entry.BEGIN: lambda w: (w,),  # an output that is an input
    Entry.STEP: _step,
    Entry.FINISH: lambda w, x: (x - w,),
    Entry.MODELS: lambda w: (w,),
    Entry.EVALUATE: _evaluate,
}


class _Module(nn.Module):
    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        return self.function(*arguments)


def lowered(
    function: Callable[..., tuple[Tensor, ...]], example: tuple[Tensor, ...], *, in_place: bool = True
) -> bytes:
    """A program of a function; without ``in_place`` its inputs and outputs are part of its memory plan."""
    with quiet():
        exir = load("executorch.exir")
        partitioner = load("executorch.backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner()
        plan = load("executorch.exir.passes").MemoryPlanningPass(
            alloc_graph_input=not in_place, alloc_graph_output=not in_place
        )
        program = torch.export.export(_Module(function), example)
        edge = exir.to_edge_transform_and_lower(program, partitioner=[partitioner])
        return bytes(edge.to_executorch(exir.ExecutorchBackendConfig(memory_planning_pass=plan)).buffer)


def zeros(graph: Graph) -> tuple[Tensor, ...]:
    """An example of each of a graph's inputs."""
    return tuple(torch.zeros(port.spec.shape, dtype=getattr(torch, port.spec.dtype)) for port in graph.inputs)


@cache
def executorch_bundle() -> Bundle:
    """The bundle of ``_graphs`` for ExecuTorch alone."""
    graphs = {entry: lowered(FUNCTIONS[entry], zeros(graph)) for entry, graph in GRAPHS.items()}
    return msgspec.structs.replace(bundle(), graphs={"executorch": graphs})
