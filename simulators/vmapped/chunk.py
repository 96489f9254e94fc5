"""Some devices of a cohort in the course of one round: their slots, minibatches and noise, all at once.

Each device gets the minibatches and the noise that an agent would draw, from the same seed and in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from device_agent import data as agents_data
from device_agent import memory as agents_memory
from device_agent.data import Batch, Examples
from device_agent.runners import Array
from edgepfl.plan import MODEL, BatchPlan, Entry, Plan, Role, SlotPlan
from edgepfl.tree import VALUE, Tree, Trees
from simulators.vmapped.graphs import Graphs
from simulators.vmapped.memory import Memory, batch_place, hyper_place, slot_place


@dataclass(frozen=True)
class Start:
    """What a chunk of devices has when a round begins.

    Attributes:
        devices: their names.
        examples: each device's data, fit to the plan.
        seeds: of each device in this round.
        hyper: the runtime hyperparameters, which all have in common.
        shared: the DOWN slots that all have in common, torch.
        addressed: the DOWN slots of which each has its own, torch, devices first.
        keep: the KEEP slots, torch, devices first; of a device that has none yet, anything.
        fresh: which devices have none yet, bool (devices,).
        number: of the round.
    """

    devices: tuple[str, ...]
    examples: tuple[Examples, ...]
    seeds: tuple[int, ...]
    hyper: Mapping[str, float]
    shared: Trees
    addressed: Trees
    keep: Trees
    fresh: Tensor
    number: int

    @property
    def size(self) -> int:
        """How many devices."""
        return len(self.devices)


def opened(graphs: Graphs, model: Tree, start: Start, steps: int = 0) -> Memory:
    """The memory of a round of so many steps, or of an evaluation, after ``begin``.

    Args:
        graphs: of the algorithm.
        model: the initial model, torch.
        start: what the devices have.
        steps: minibatch steps that the round is to take.
    """
    plan, device = graphs.plan, start.fresh.device
    memory = Memory(start.size)
    for name, value in {**plan.hyper, **start.hyper}.items():
        memory.shared[hyper_place(name)] = torch.tensor(value, dtype=torch.float32, device=device)
    for slot, tree in start.shared.items():
        memory.share(slot, tree)
    for slot, tree in start.addressed.items():
        memory.give(slot, tree)
    for slot, resolved in plan.by_role(Role.KEEP).items():
        memory.give(slot, _kept(slot, resolved, start, model, memory))
    counts = np.array([examples.count for examples in start.examples], np.float32)
    for name, values in {"examples": counts, "epoch": -(-counts // plan.batch.size)}.items():
        memory.own[slot_place(name, VALUE)] = torch.from_numpy(values).to(device)
    _count(memory, "planned", steps, device)
    _count(memory, "steps", 0, device)
    if graphs.has(Entry.BEGIN):
        graphs.run(Entry.BEGIN, memory)
    return memory


def steps_of(
    graphs: Graphs, memory: Memory, start: Start, steps: int, seeds: Sequence[int], device: torch.device
) -> Iterator[int]:
    """Put one minibatch of every device after the other into ``memory`` and give its number, from 1.

    Args:
        graphs: of the algorithm.
        memory: of the round.
        start: what the devices have.
        steps: how many minibatches.
        seeds: of each device's minibatches and noise.
        device: where the tensors are to be.
    """
    plan = graphs.plan
    noise = plan.by_role(Role.NOISE)
    drawn = [
        agents_minibatches(examples, plan, steps, seed) for examples, seed in zip(start.examples, seeds, strict=True)
    ]
    for done in range(steps):
        put(memory, stacked_batches([next(each) for each in drawn], plan.batch), device)
        for slot, resolved in noise.items():
            memory.give(slot, _noise(slot, resolved, seeds, done, device))
        yield done + 1
        _count(memory, "steps", done + 1, device)


def agents_minibatches(examples: Examples, plan: Plan, steps: int, seed: int) -> Iterator[Batch]:
    """What an agent would train on."""
    return agents_data.minibatches(examples, plan.batch.size, steps, seed)


def stacked_batches(batches: Sequence[Batch], plan: BatchPlan) -> Batch:
    """One minibatch of each device, devices first, in arrays of their own."""
    count, size = len(batches), plan.size
    x = tuple(np.empty((count, size, *spec.shape), spec.dtype) for spec in plan.x)
    y = np.empty((count, size, *plan.y.shape), plan.y.dtype)
    weight = np.empty((count, size), np.float32)
    for number, batch in enumerate(batches):
        for into, rows in zip(x, batch.x, strict=True):
            into[number] = rows
        y[number], weight[number] = batch.y, batch.weight
    return Batch(x, y, weight)


def put(memory: Memory, batch: Batch, device: torch.device) -> None:
    """Put one minibatch of each device where the functions read it."""
    for number, x in enumerate(batch.x):
        memory.own[batch_place("x", str(number))] = torch.from_numpy(x).to(device)
    memory.own[batch_place("y")] = torch.from_numpy(batch.y).to(device)
    memory.own[batch_place("weight")] = torch.from_numpy(batch.weight).to(device)


def _count(memory: Memory, slot: str, value: int, device: torch.device) -> None:
    memory.share(slot, Tree.scalar(torch.tensor(float(value), device=device)))


def _noise(slot: str, resolved: SlotPlan, seeds: Sequence[int], step: int, device: torch.device) -> Tree:
    drawn = [agents_memory.draw({slot: resolved}, seed, step) for seed in seeds]
    return Tree(
        {
            name: torch.from_numpy(np.stack([each[slot_place(slot, name)] for each in drawn])).to(device)
            for name in resolved.tensors
        }
    )


def _kept(slot: str, resolved: SlotPlan, start: Start, model: Tree, memory: Memory) -> Tree:
    """A KEEP slot: each device's own, or what it starts from: see :attr:`edgepfl.plan.Slot.first`."""
    if not start.fresh.any():
        return start.keep[slot]
    known = start.keep[slot] if not start.fresh.all() else None
    return Tree({name: _first(name, resolved, start, model, memory, known) for name in resolved.tensors})


def _first(name: str, resolved: SlotPlan, start: Start, model: Tree, memory: Memory, known: Tree | None) -> Tensor:
    shape = resolved.tensors[name].shape
    first = resolved.first
    if isinstance(first, str) and (found := memory.shared.get(hyper_place(first))) is not None:
        value = found.expand(start.size, *shape)
    elif first == MODEL:
        value = model[name].expand(start.size, *shape)
    elif isinstance(first, str) and (given := memory.stacked(slot_place(first, name))) is not None:
        value = given
    else:
        value = torch.full((start.size, *shape), float(first or 0), device=start.fresh.device)
    if known is None:
        return value
    return torch.where(start.fresh.reshape(-1, *[1] * len(shape)), value, known[name])


def rows(arrays: Mapping[str, Array], number: int) -> Tree:
    """One device's tensors out of all devices'."""
    return Tree({name: array[number] for name, array in arrays.items()})
