"""What each graph's ports are bound to, and which bindings a plan may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from edgepfl.errors import PlanError
from edgepfl.plan import GIVEN, Entry, Graph, Kind, Plan, Port, Role, TensorSpec

Key: TypeAlias = tuple[str, str, str]
"""Kind, group and tensor of a port: its place in the memory."""

_WRITABLE = (Role.KEEP, Role.WORK, Role.UP, Role.TELL)
_RESULTS = (Kind.SLOT, Kind.MODEL, Kind.METRIC, Kind.OUTPUT)


@dataclass(frozen=True)
class Wiring:
    """Where a graph's tensors are.

    Attributes:
        inputs: the place of each input, in the order of the ports.
        outputs: likewise.
        metrics: metric's name to the place of the output that is one.
    """

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    metrics: Mapping[str, Key]


def wire(graph: Graph) -> Wiring:
    """The wiring of one graph."""
    return Wiring(
        tuple(place(port) for port in graph.inputs),
        tuple(place(port) for port in graph.outputs),
        {port.group: place(port) for port in graph.outputs if port.kind is Kind.METRIC},
    )


def place(port: Port) -> Key:
    """Where the tensor of a port is."""
    return port.kind.value, port.group, port.tensor


def lasting(plan: Plan) -> dict[Key, TensorSpec]:
    """What of a round's memory a checkpoint between two steps must hold.

    It is what the graphs of a step write and a later step, ``finish`` or the result may read before it is written
    again.  All else follows from the task: ``begin`` gives it again.
    """
    written: dict[Key, TensorSpec] = {}
    read: set[Key] = set()
    for entry in (Entry.PREPARE, *((Entry.INNER,) if plan.inner_steps else ()), Entry.STEP):
        if entry in plan.graphs:
            read |= {place(port) for port in plan.graphs[entry].inputs} - written.keys()
            written |= {place(port): port.spec for port in plan.graphs[entry].outputs}
    finish = plan.graphs[Entry.FINISH]
    given = {
        (Kind.SLOT.value, name, tensor)
        for role in (Role.UP, Role.KEEP, Role.TELL)
        for name, slot in plan.by_role(role).items()
        for tensor in slot.tensors
    }
    read |= {place(port) for port in finish.inputs} | (given - {place(port) for port in finish.outputs})
    return {key: written[key] for key in sorted(written.keys() & read)}


def check(plan: Plan) -> None:
    """Refuse a plan whose graphs read or write what its slots do not allow.

    Raises:
        PlanError: it is one.
    """
    for entry in (Entry.STEP, Entry.FINISH, *((Entry.INNER,) if plan.inner_steps else ())):
        if entry not in plan.graphs:
            raise PlanError(f"{plan.algorithm} has no graph {entry}", where="plan", remedy="Export the bundle again")
    for entry, graph in plan.graphs.items():
        for port in graph.inputs:
            _check_input(plan, port, f"graph {entry}, input {port.name}")
        for port in graph.outputs:
            _check_output(plan, port, f"graph {entry}, output {port.name}")
    for name in plan.by_role(Role.GIVEN):
        if name not in GIVEN:
            raise PlanError(f"this agent knows no {name!r}", where="plan", remedy="Update the agent")


def _check_input(plan: Plan, port: Port, where: str) -> None:
    if port.kind is Kind.HYPER and port.group not in plan.hyper:
        raise PlanError(f"{port.group!r} is no runtime hyperparameter of the plan", where=where)
    if port.kind is Kind.SLOT:
        _role(plan, port, where)


def _check_output(plan: Plan, port: Port, where: str) -> None:
    if port.kind not in _RESULTS:
        raise PlanError(f"a graph may not set {port.kind} {port.group!r}", where=where)
    if port.kind is Kind.METRIC and port.spec.shape:
        raise PlanError(f"metric {port.group!r} has dimensions {list(port.spec.shape)}", where=where)
    if port.kind is Kind.SLOT and (role := _role(plan, port, where)) not in _WRITABLE:
        raise PlanError(f"a graph may not set {role} slot {port.group!r}", where=where)


def _role(plan: Plan, port: Port, where: str) -> Role:
    slot = plan.slots.get(port.group)
    if slot is None or slot.tensors.get(port.tensor) != port.spec:
        raise PlanError(f"the plan has no such tensor {port.tensor!r} of slot {port.group!r}", where=where)
    return slot.role
