"""Plans whose uploads are coded, and uploads for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgepfl.plan import BatchPlan, ExampleSpec, Plan, Reduce, Role, SlotPlan, TensorSpec, TensorSpecs
from edgepfl.tree import Tree, Trees

DELTA = {
    "bn.mean": TensorSpec((4,)),
    "bias": TensorSpec((5,)),
    "count": TensorSpec((), "int64"),
    "weight": TensorSpec((7, 9)),
    "scale": TensorSpec(()),
}
SLOTS: Mapping[str, TensorSpecs] = {"delta": DELTA, "precision": {"": TensorSpec((3, 2))}}
SHAPES = {
    (slot, name): (np.dtype(spec.dtype), spec.shape) for slot, specs in SLOTS.items() for name, spec in specs.items()
}


def _plan(slots: Mapping[str, TensorSpecs], statistics: tuple[str, ...] = ()) -> Plan:
    up = {name: SlotPlan(Role.UP, specs, reduce=Reduce.MEAN) for name, specs in slots.items()}
    batch = BatchPlan(1, (ExampleSpec((1,)),), ExampleSpec(()))
    return Plan("coded", {}, {}, {}, up, {}, batch, {}, ("",), statistics=statistics)


PLAN = _plan(SLOTS, ("bn.mean",))


def plan_of(slots: Mapping[str, Mapping[str, tuple[int, ...]]]) -> Plan:
    """A plan with these UP slots of float32 tensors."""
    return _plan({name: {key: TensorSpec(shape) for key, shape in tensors.items()} for name, tensors in slots.items()})


def upload_of(seed: int) -> Trees:
    """An upload of :data:`PLAN`, a third of it zeros."""
    rng = np.random.default_rng(seed)

    def made(spec: TensorSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
        numbers = rng.standard_normal(spec.shape) * (rng.random(spec.shape) > 1 / 3)
        return np.asarray(numbers * 1000 if spec.dtype == "int64" else numbers, spec.dtype)

    return {slot: Tree({name: made(spec) for name, spec in specs.items()}) for slot, specs in SLOTS.items()}
