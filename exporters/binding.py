"""An algorithm bound to a model: which tensors each slot holds, and the ports they go through."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property

from torch import Tensor

from edgepfl import plan
from edgepfl.algorithms import Algorithm, hyperparameters
from edgepfl.errors import PlanError
from edgepfl.plan import Entry, Kind, Port, Role, SlotPlan, TensorSpec, TensorSpecs
from edgepfl.tree import Tree, Trees
from exporters.minibatch import ModelMinibatch
from exporters.model import Inputs, Model
from exporters.representation import width_of
from exporters.statistics import Measured

DROPOUT = "dropout"
"""The NOISE slot of the model's own layers."""

_KNOWN = (Role.DOWN, Role.KEEP, Role.GIVEN)
READS: Mapping[Entry, tuple[Role, ...]] = {
    Entry.BEGIN: _KNOWN,
    Entry.PREPARE: (*_KNOWN, Role.WORK, Role.NOISE),
    Entry.INNER: (*_KNOWN, Role.WORK, Role.NOISE),
    Entry.STEP: (*_KNOWN, Role.WORK, Role.NOISE),
    Entry.FINISH: (*_KNOWN, Role.WORK),
    Entry.TUNE: (*_KNOWN, Role.WORK, Role.NOISE),
    Entry.MODELS: (*_KNOWN, Role.WORK),
}
"""The roles of the slots that a device function may read."""

WRITES: Mapping[Entry, tuple[Role, ...]] = {
    Entry.BEGIN: (Role.KEEP, Role.WORK),
    Entry.PREPARE: (Role.KEEP, Role.WORK),
    Entry.INNER: (Role.KEEP, Role.WORK),
    Entry.STEP: (Role.KEEP, Role.WORK),
    Entry.FINISH: (Role.KEEP, Role.WORK, Role.UP, Role.TELL),
    Entry.TUNE: (Role.KEEP, Role.WORK),
}
"""The roles of the slots that a device function may return."""


class _Readable(dict[str, Tree]):
    """Slots by name; says plainly why one is not there."""

    def __init__(self, trees: Trees, entry: Entry) -> None:
        super().__init__(trees)
        self._entry = entry

    def __missing__(self, slot: str) -> Tree:
        roles = ", ".join(READS[self._entry])
        raise PlanError(f"it reads slot {slot!r}; it may read the slots of roles {roles}", where=self._entry)


@dataclasses.dataclass(frozen=True)
class Binding:
    """One algorithm on one model.

    Attributes:
        algorithm: the algorithm, with its hyperparameters.
        model: the model.
    """

    algorithm: Algorithm
    model: Model

    @cached_property
    def hyper(self) -> dict[str, float]:
        """The hyperparameters that are inputs of the graphs, with their defaults."""
        return {name: float(getattr(self.algorithm, name)) for name in self.fields("runtime")}

    @cached_property
    def slots(self) -> dict[str, SlotPlan]:
        """Each slot's tensors for this model, and the noise that its dropout asks for."""
        slots = plan.resolve(
            self.algorithm.declared(), self.model.specs, self.model.personal_names, self.hyper, self.dims
        )
        if noise := self.model.noise:
            if DROPOUT in slots:
                raise PlanError(f"slot {DROPOUT!r} is taken for the model's dropout", where="slots")
            slots[DROPOUT] = SlotPlan(Role.NOISE, {f"{i:03}": spec for i, spec in enumerate(noise)})
        return slots

    @cached_property
    def dims(self) -> dict[str, int]:
        """The dimensions that slots may name."""
        dims = {"batch": self.model.batch}
        if self.model.target.high:
            dims["classes"] = self.model.target.high
        if (width := width_of(self.model)) is not None:
            dims["width"] = width
        whole = {name: getattr(self.algorithm, name) for name in self.fields("fixed")}
        return {**dims, **{name: size for name, size in whole.items() if type(size) is int}}

    @cached_property
    def served(self) -> TensorSpecs:
        """The tensors of each model that a device can predict with."""
        return dict(self.algorithm.served(self.model.specs))

    @property
    def hyper_ports(self) -> tuple[Port, ...]:
        """The inputs of the runtime hyperparameters, without dimensions."""
        return tuple(Port(f"hyper:{name}", Kind.HYPER, name, TensorSpec(())) for name in self.hyper)

    @property
    def x_ports(self) -> tuple[Port, ...]:
        """The model's inputs."""
        return tuple(self._batch_port("x", spec, str(i)) for i, spec in enumerate(self.model.inputs))

    @property
    def batch_ports(self) -> tuple[Port, ...]:
        """The model's inputs, the targets and the weights."""
        return (*self.x_ports, self._batch_port("y", self.model.target), self._batch_port("weight", TensorSpec(())))

    @property
    def model_ports(self) -> tuple[Port, ...]:
        """The inputs of the parameters to predict with, whichever model's they are."""
        return tuple(Port(f"model/{name}", Kind.MODEL, "", spec, name) for name, spec in self.served.items())

    def slot_ports(self, entry: Entry) -> tuple[Port, ...]:
        """The inputs of all slots that a device function may read."""
        return tuple(
            Port(f"{slot}/{name}", Kind.SLOT, slot, spec, name)
            for slot, resolved in self.slots.items()
            if resolved.role in READS[entry]
            for name, spec in resolved.tensors.items()
        )

    def fields(self, role: str) -> list[str]:
        """The hyperparameters that are "runtime", "fixed" or "server"."""
        return [name for name, found in hyperparameters(type(self.algorithm)).items() if found == role]

    def tuned(self, values: Mapping[str, Tensor]) -> Algorithm:
        """The algorithm with tensors in place of its runtime hyperparameters."""
        given = {port.group: values[port.name] for port in self.hyper_ports}
        return dataclasses.replace(self.algorithm, **given)  # type: ignore[arg-type]  # tensors stand in for floats

    def trees(self, entry: Entry, values: Mapping[str, Tensor]) -> Trees:
        """The slots that a device function reads."""
        read = {
            slot: Tree({name: values[f"{slot}/{name}"] for name in resolved.tensors})
            for slot, resolved in self.slots.items()
            if resolved.role in READS[entry]
        }
        return _Readable(read, entry)

    def slot_outputs(self, entry: Entry, trees: Trees) -> Iterator[tuple[Port, Tensor]]:
        """A device function's slots as outputs.

        Raises:
            PlanError: a slot that is not declared, not this function's to set, or of other tensors than declared.
        """
        for slot, tree in trees.items():
            resolved = self.slots.get(slot)
            if resolved is None or resolved.role not in WRITES[entry]:
                raise PlanError(
                    f"it returns slot {slot!r}; it may return the slots of roles {', '.join(WRITES[entry])}",
                    where=entry,
                )
            stored = tree.map(lambda tensor: tensor.resolved() if isinstance(tensor, Measured) else tensor)
            for name, spec in _matched(f"{entry} returns {slot}", stored, resolved.tensors):
                yield Port(f"next:{slot}/{name}", Kind.SLOT, slot, spec, name), stored[name]
        if entry is Entry.FINISH:
            self._complete(trees)

    def model_outputs(self, name: str, params: Tree) -> Iterator[tuple[Port, Tensor]]:
        """The parameters of one of the models that a device can predict with, as outputs."""
        for tensor, spec in _matched(f"model {name}", params, self.served):
            yield Port(f"model:{name}/{tensor}", Kind.MODEL, name, spec, tensor), params[tensor]

    def minibatch(self, values: Mapping[str, Tensor]) -> ModelMinibatch:
        """The minibatch in these values."""
        noise = self.slots[DROPOUT].tensors if DROPOUT in self.slots else {}
        return ModelMinibatch(
            self.model,
            self.inputs(values),
            values["batch:y"],
            values["batch:weight"],
            [values[f"{DROPOUT}/{name}"] for name in noise],
        )

    def inputs(self, values: Mapping[str, Tensor]) -> Inputs:
        """The model's inputs in these values."""
        return tuple(values[port.name] for port in self.x_ports)

    def _batch_port(self, group: str, spec: TensorSpec, tensor: str = "") -> Port:
        return Port(
            f"batch:{group}{tensor}",
            Kind.BATCH,
            group,
            TensorSpec((self.model.batch, *spec.shape), spec.dtype),
            tensor,
        )

    def _complete(self, trees: Trees) -> None:
        due = (Role.UP, Role.TELL)
        missing = [name for name, slot in self.slots.items() if slot.role in due and name not in trees]
        if missing:
            role = self.slots[missing[0]].role.upper()
            raise PlanError(f"it does not return the {role} slot {missing[0]!r}", where=Entry.FINISH)


def _matched(where: str, tree: Tree, specs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, TensorSpec]]:
    if apart := tree.keys() ^ specs.keys():
        raise PlanError(f"its tensors are not those declared: {', '.join(sorted(apart)[:4])}", where=where)
    for name, spec in specs.items():
        tensor = tree[name]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != spec.shape or not tensor.is_floating_point():
            found = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise PlanError(f"tensor {name!r} is {found}, declared {list(spec.shape)}", where=where)
        yield name, spec
