"""Plans of the real algorithms on a model of two tensors, without graphs, and uploads for them."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatch
from typing import Any

import msgspec
import numpy as np

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.plan import BatchPlan, Entry, ExampleSpec, Graph, Plan, Role, Shape, TensorSpec, resolve
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees

MODEL = {"body.bias": TensorSpec((2,)), "head.weight": TensorSpec((3, 2))}
DIMS = {"batch": 4, "classes": 3, "width": 2}


def model() -> Tree:
    """The initial model."""
    return drawn(MODEL, 1)


def drawn(specs: dict[str, TensorSpec], *seed: int | str) -> Tree:
    """Tensors of these shapes, above 0: some stand for precisions."""
    source = generator(0, *seed)
    return Tree({name: source.uniform(0.1, 0.9, spec.shape).astype(np.float32) for name, spec in specs.items()})


def uploads_of(plan: Plan, device: str, number: int) -> Trees:
    """A device's UP slots in a round."""
    return {name: drawn(slot.tensors, device, number, name) for name, slot in plan.by_role(Role.UP).items()}


def plan_of(name: str, **settings: float | str) -> Plan:
    """The plan of an algorithm as an export would make it, without graphs."""
    kind = algorithms.load(name)
    made = algorithms.build(name, settings)
    values: dict[str, dict[str, Any]] = {role: {} for role in ("fixed", "runtime", "server")}
    for field, role in algorithms.hyperparameters(kind).items():
        value = getattr(made, field)
        values[role][field] = str(value) if isinstance(value, StrEnum) else value
    dims = {**DIMS, **{field: size for field, size in values["fixed"].items() if type(size) is int}}
    personal = personal_of(made)
    served = dict(made.served(MODEL))
    return Plan(
        name,
        values["fixed"],
        values["runtime"],
        values["server"],
        resolve(made.declared(), MODEL, personal, values["runtime"], dims),
        {},
        BatchPlan(DIMS["batch"], (ExampleSpec((3,)),), ExampleSpec((), "int64", high=DIMS["classes"])),
        MODEL,
        ("own",),
        personal,
        served={} if served == MODEL else served,
        dims=dims,
    )


def bundle_of(name: str, **settings: float | str) -> Bundle:
    """A bundle for devices that run no graphs."""
    plan = msgspec.structs.replace(plan_of(name, **settings), graphs={Entry.STEP: Graph((), ())})
    return Bundle(plan, model(), {"onnx": {Entry.STEP: b"a graph"}}, {})


def personal_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The parameters that stay on the device, or that an algorithm treats apart: the head unless it says which."""
    if Shape.PERSONAL not in {slot.shape for slot in algorithm.declared().values()}:
        return ()
    patterns = algorithm.personal_default or ("head.*",)
    return tuple(name for name in MODEL if any(fnmatch(name, pattern) for pattern in patterns))
