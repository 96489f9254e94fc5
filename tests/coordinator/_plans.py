"""Plans of the real algorithms on a model of two tensors, without graphs."""

from __future__ import annotations

from typing import Any

from edgepfl import algorithms
from edgepfl.plan import BatchPlan, ExampleSpec, Plan, TensorSpec, Weighting, resolve

MODEL = {"body.bias": TensorSpec((2,)), "head.weight": TensorSpec((3, 2))}


def plan_of(name: str, **settings: float) -> Plan:
    """The plan of an algorithm as an export would make it, without graphs."""
    kind = algorithms.load(name)
    made = algorithms.build(name, settings)
    roles = algorithms.hyperparameters(kind)
    values: dict[str, dict[str, Any]] = {role: {} for role in ("fixed", "runtime", "server")}
    for field, role in roles.items():
        value = getattr(made, field)
        values[role][field] = str(value) if isinstance(value, Weighting) else value
    personal = ("head.weight",) if name == "fedper" else ()
    slots = resolve(kind.slots, MODEL, personal, values["runtime"])
    batch = BatchPlan(4, (ExampleSpec((3,)),), ExampleSpec((), "int64", high=3))
    return Plan(name, values["fixed"], values["runtime"], values["server"], slots, {}, batch, MODEL, ("own",), personal)
