"""One round's training of a chunk of devices: :meth:`device_agent.interpreter.Interpreter.train`, for many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_agent.memory import diverged
from edgepfl.errors import GraphFailed
from edgepfl.plan import Entry, Kind, Role
from edgepfl.tree import VALUE, Tree, Trees
from simulators.vmapped import chunk
from simulators.vmapped.chunk import Start
from simulators.vmapped.graphs import Graphs
from simulators.vmapped.memory import Memory, slot_place

Numbers = NDArray[np.float64]
"""One number for each device, ``(devices,)``."""

TELLING = (Entry.STEP, Entry.INNER, Entry.PREPARE)
"""Which function's loss counts: the first of these that has one; of the inner steps it is the last on a minibatch."""


@dataclass(frozen=True)
class Trained:
    """What a round's training of a chunk gave.

    Attributes:
        upload: the UP slots, devices first.
        keep: the KEEP slots, devices first.
        metrics: the mean loss over each device's minibatches, and what it tells; empty without steps.
    """

    upload: Trees
    keep: Trees
    metrics: Mapping[str, Numbers]


def train(graphs: Graphs, model: Tree, start: Start, steps: int) -> Trained:
    """One round: begin, ``steps`` minibatches, finish.

    Args:
        graphs: of the algorithm.
        model: the initial model, torch.
        start: what the devices have.
        steps: minibatch steps to take.

    Raises:
        ExportError: it cannot be run for many devices at once.
        GraphFailed: a device's numbers are not finite.
    """
    plan, device = graphs.plan, start.fresh.device
    memory = chunk.opened(graphs, model, start, steps)
    told = _telling(graphs)
    losses = torch.zeros(start.size, dtype=torch.float64, device=device)
    for _ in chunk.steps_of(graphs, memory, start, steps, start.seeds, device):
        if graphs.has(Entry.PREPARE):
            graphs.run(Entry.PREPARE, memory)
        for _ in range(plan.inner_steps):
            graphs.run(Entry.INNER, memory)
        graphs.run(Entry.STEP, memory)
        if told:
            losses += memory.own[_LOSS]
    graphs.run(Entry.FINISH, memory)
    upload, keep = (_collected(graphs, role, memory, start) for role in (Role.UP, Role.KEEP))
    if not steps:
        return Trained(upload, keep, {})
    tell = _collected(graphs, Role.TELL, memory, start)
    means = {"loss": (losses / steps).cpu().numpy()} if told else {}
    metrics = means | {name: tree.value.double().cpu().numpy() for name, tree in tell.items()}
    _check_losses(metrics, start)
    return Trained(upload, keep, metrics)


_LOSS = (Kind.METRIC.value, "loss", "")


def _telling(graphs: Graphs) -> bool:
    """Whether a step tells its loss; what a later function of the step tells would overwrite that of an earlier one."""
    telling = [
        entry
        for entry in TELLING
        if graphs.has(entry) and any(port.kind is Kind.METRIC for port in graphs.plan.graphs[entry].outputs)
    ]
    return bool(telling)


def _collected(graphs: Graphs, role: Role, memory: Memory, start: Start) -> dict[str, Tree]:
    """The slots of a role, devices first, as the functions left them.

    Raises:
        GraphFailed: a tensor is missing or not finite.
    """
    return {
        slot: Tree({name: _tensor(slot, name, memory, start) for name in resolved.tensors})
        for slot, resolved in graphs.plan.by_role(role).items()
    }


def _tensor(slot: str, name: str, memory: Memory, start: Start) -> Tensor:
    tensor = memory.stacked(slot_place(slot, name))
    if tensor is None:
        raise GraphFailed(f"nothing gave tensor {name!r} of slot {slot!r}", where=f"round {start.number}")
    if not torch.isfinite(tensor).all():
        bad = (~torch.isfinite(tensor.reshape(start.size, -1)).all(1)).nonzero()
        what = f"tensor {name!r} of slot {slot!r} is not finite on {start.devices[int(bad[0])]}"
        raise diverged(what, start.number)
    return tensor


def _check_losses(metrics: Mapping[str, Numbers], start: Start) -> None:
    for name, values in metrics.items():
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise diverged(f"{name} is {values[bad[0]]} on {start.devices[bad[0]]}", start.number)


__all__ = ["TELLING", "VALUE", "Numbers", "Trained", "train"]
