"""The memory of one round: what the graphs read and write, by place.

Arrays are replaced and never changed, so two places may share one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from device_agent.data import Batch
from device_agent.runners import Array
from device_agent.wiring import Key
from edgepfl.errors import GraphFailed, PlanError
from edgepfl.plan import INPUT_LIMIT, MODEL, Kind, Plan, SlotPlan, TensorSpec
from edgepfl.seeds import generator
from edgepfl.tree import VALUE, Tree, Trees

Memory: TypeAlias = dict[Key, Array]
"""Place to tensor."""

SlotPlans: TypeAlias = Mapping[str, SlotPlan]

_SLOT, _HYPER, _BATCH = Kind.SLOT.value, Kind.HYPER.value, Kind.BATCH.value
_INPUTS = tuple((_BATCH, "x", str(i)) for i in range(INPUT_LIMIT))
_TARGETS, _WEIGHTS = (_BATCH, "y", ""), (_BATCH, "weight", "")


def scalar(slot: str, value: float) -> Memory:
    """A scalar slot's tensor."""
    return {(_SLOT, slot, VALUE): np.asarray(value, np.float32)}


def hyper(plan: Plan, given: Mapping[str, float]) -> Memory:
    """The runtime hyperparameters: ``given``, or else the plan's values.

    Raises:
        PlanError: one is given that the plan does not have.
    """
    for name in given:
        if name not in plan.hyper:
            known = difflib.get_close_matches(name, plan.hyper, 1) or sorted(plan.hyper)
            raise PlanError(
                f"{name!r} is no runtime hyperparameter of {plan.algorithm}",
                where="task",
                remedy=f"Did you mean {', '.join(known)}?" if known else "It has none",
            )
    values = {**plan.hyper, **given}
    return {(_HYPER, name, ""): np.asarray(value, np.float32) for name, value in values.items()}


def load(slots: SlotPlans, trees: Trees, where: str) -> Memory:
    """The tensors of ``trees``, which must be exactly those of ``slots``.

    Raises:
        PlanError: they are not.
    """
    for name in sorted(slots.keys() ^ trees.keys()):
        raise PlanError(f"slot {name!r} is {'missing' if name in slots else 'not in the plan'}", where=where)
    memory: Memory = {}
    for name, slot in slots.items():
        for tensor, spec in slot.tensors.items():
            array = trees[name].get(tensor)
            if array is None or not _fits(array, spec):
                raise PlanError(
                    f"tensor {tensor!r} of slot {name!r} is not {spec.dtype}{list(spec.shape)}", where=where
                )
            memory[_SLOT, name, tensor] = array
    return memory


def first(slots: SlotPlans, model: Tree, memory: Memory) -> Memory:
    """The KEEP slots before the device's first round: see :attr:`edgepfl.plan.Slot.first`."""
    return {
        (_SLOT, name, tensor): _first(slot, tensor, spec, model, memory)
        for name, slot in slots.items()
        for tensor, spec in slot.tensors.items()
    }


def _first(slot: SlotPlan, tensor: str, spec: TensorSpec, model: Tree, memory: Memory) -> Array:
    match slot.first:
        case str(name) if (_HYPER, name, "") in memory:
            return np.full(spec.shape, memory[_HYPER, name, ""], spec.dtype)
        case str(name) if name == MODEL and tensor in model:
            return np.asarray(model[tensor])
        case str(name) if (_SLOT, name, tensor) in memory:
            return memory[_SLOT, name, tensor]
        case float(number):
            return np.full(spec.shape, number, spec.dtype)
        case other:
            raise PlanError(f"a KEEP slot cannot start from {other!r}", where="plan", remedy="Export the bundle again")


def put(rows: Batch, memory: Memory) -> None:
    """Put a minibatch where the graphs read it."""
    memory.update(zip(_INPUTS, rows.x, strict=False))  # a model has few of them
    memory[_TARGETS] = rows.y
    memory[_WEIGHTS] = rows.weight


def draw(slots: SlotPlans, seed: int, step: int) -> Memory:
    """The NOISE slots of one minibatch: standard normals that depend on ``seed``, slot and ``step`` only."""
    memory: Memory = {}
    for name, slot in slots.items():
        source = generator(seed, "noise", name, step)
        for tensor, spec in sorted(slot.tensors.items()):
            memory[_SLOT, name, tensor] = source.standard_normal(spec.shape, dtype=np.float32)
    return memory


def collect(slots: SlotPlans, memory: Memory, round_: int) -> dict[str, Tree]:
    """The trees of ``slots``, as the graphs left them.

    Raises:
        GraphFailed: a tensor is missing, misshapen or not finite.
    """
    return {name: _collect(name, slot, memory, round_) for name, slot in slots.items()}


def _collect(name: str, slot: SlotPlan, memory: Memory, round_: int) -> Tree:
    tensors: dict[str, Array] = {}
    for tensor, spec in slot.tensors.items():
        array = memory.get((_SLOT, name, tensor))
        label = f"tensor {tensor!r} of slot {name!r}"
        if array is None or not _fits(array, spec):
            raise GraphFailed(f"no graph gave {label} its declared shape", where=f"round {round_}")
        if not np.isfinite(array).all():
            raise diverged(f"{label} is not finite", round_)
        tensors[tensor] = array
    return Tree(tensors)


def diverged(what: str, round_: int) -> GraphFailed:
    """The error of a number that is not finite."""
    return GraphFailed(what, where=f"round {round_}", remedy="Training diverged: lower lr")


def _fits(array: Array, spec: TensorSpec) -> bool:
    return array.shape == spec.shape and array.dtype == spec.dtype
