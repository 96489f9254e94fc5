"""The plan: all that a device must know of an algorithm and a model, as data.

An algorithm declares :class:`Slot` s; the exporter resolves them for one model into a :class:`Plan`, which travels in
the bundle.  The agent moves named tensors by the plan and never learns which algorithm it runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from edgepfl.errors import PlanError

PROTOCOL = 1
"""The version of the wire that this code speaks."""

FORMAT = 2
"""The version of bundles that this code writes and reads.

1 had a single input, no running statistics and no error beside its golden vectors; it was never released.
"""

MODEL = "model"
"""``Slot.first`` of a KEEP slot that starts as the bundle's initial model."""

DTYPES = ("float32", "int64")
"""What may cross a graph's border."""

DIMENSION_LIMIT = 8
INPUT_LIMIT = 16  # of one model
BATCH_LIMIT = 1 << 16  # rows of a minibatch
ELEMENT_LIMIT = 1 << 28  # of one tensor: what a hostile plan can make a device allocate at once


class Role(StrEnum):
    """Who sets a slot, and where it goes."""

    DOWN = "down"  # sent by the coordinator
    KEEP = "keep"  # the device's own, never sent
    WORK = "work"  # scratch of one round
    GIVEN = "given"  # a scalar that the agent knows: see GIVEN
    NOISE = "noise"  # standard normals, drawn by the agent for each minibatch
    UP = "up"  # sent at the end of the round
    TELL = "tell"  # a scalar of the end of the round, told with the report's metrics


GIVEN = (
    "steps",  # minibatch steps done so far in this round
    "examples",  # that the device trains on
    "planned",  # minibatch steps that the task wants
    "epoch",  # minibatch steps in which every example has its turn once
)
"""The scalars that an agent knows, by the name of their slot."""


Dims: TypeAlias = tuple[int | str, ...]
"""The dimensions of a tensor, some of them by name."""


class Reduce(StrEnum):
    """How the coordinator combines one UP slot over the cohort."""

    MEAN = "mean"  # weighted as the algorithm says, streamed
    SUM = "sum"  # streamed
    STACK = "stack"  # all devices' trees on a leading axis, in device order


class Weighting(StrEnum):
    """The weights of :attr:`Reduce.MEAN`."""

    EXAMPLES = "examples"
    UNIFORM = "uniform"


class Shape(StrEnum):
    """Slot shapes that follow from the model."""

    PARAMS = "params"  # every parameter and running statistic
    SHARED = "shared"  # the parameters that no personal pattern names
    PERSONAL = "personal"  # the parameters that one does
    SCALAR = "scalar"  # one number


@dataclass(frozen=True)
class Slot:
    """One named place for tensors in an algorithm's state.

    Attributes:
        role: who sets it.
        shape: follows the model, or is the dimensions of a single tensor: numbers, ``"batch"``, ``"classes"``,
            ``"width"`` (of a model's representation), or the name of a hyperparameter that is a whole number.
        first: of a KEEP slot, its value before the device's first round: the name of a DOWN slot,
            ``"model"``, or a number to fill with, given itself or as the name of a runtime hyperparameter.
            Of a DOWN slot, a number that fills the server's state before the first round.
        reduce: of an UP slot, how the coordinator combines it.
        addressed: of a DOWN slot, each device gets a value of its own (FPFC's zeta), so nothing is broadcast.
        change: of an UP slot, whether it is what the round changed, 0 where nothing was learnt, rather than a model
            or a statistic: only then can it be clipped.
    """

    role: Role
    shape: Shape | Dims = Shape.PARAMS
    first: str | float | None = None
    reduce: Reduce | None = None
    addressed: bool = False
    change: bool = False


def down(shape: Shape | Dims = Shape.PARAMS, *, addressed: bool = False, first: float | None = None) -> Slot:
    """A slot that the coordinator sends; ``first`` fills it where the algorithm's ``init`` does not give it."""
    return Slot(Role.DOWN, shape, first, addressed=addressed)


def keep(shape: Shape | Dims = Shape.PARAMS, *, first: str | float) -> Slot:
    """A slot that stays on the device from round to round and never reaches the wire."""
    return Slot(Role.KEEP, shape, first=first)


def work(shape: Shape | Dims = Shape.PARAMS) -> Slot:
    """Scratch of one round."""
    return Slot(Role.WORK, shape)


def given() -> Slot:
    """A scalar that the agent knows; its name says which."""
    return Slot(Role.GIVEN, Shape.SCALAR)


def noise(*dims: int | str) -> Slot:
    """Standard normals of these dimensions, drawn anew for every minibatch."""
    return Slot(Role.NOISE, dims)


def tell() -> Slot:
    """A number about the round for people, such as a norm: it goes into the report's metrics."""
    return Slot(Role.TELL, Shape.SCALAR)


def up(reduce: Reduce, shape: Shape | Dims = Shape.PARAMS, *, change: bool = True) -> Slot:
    """A slot that the device sends at the end of a round; ``change`` is False for a model or a statistic."""
    return Slot(Role.UP, shape, reduce=reduce, change=change)


class TensorSpec(msgspec.Struct, frozen=True):
    """The shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if any(not 0 < size <= 1 << 24 for size in self.shape):
            raise ValueError(f"shape {self.shape} has a dimension outside 1 .. 2^24")
        if len(self.shape) > DIMENSION_LIMIT or self.size > ELEMENT_LIMIT:
            raise ValueError(f"shape {self.shape} has more than 8 dimensions or 2^28 elements")

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of its elements."""
        return self.size * (8 if self.dtype == "int64" else 4)


TensorSpecs = dict[str, TensorSpec]


class ExampleSpec(TensorSpec, frozen=True):
    """The shape and dtype of what one example has of an input or a target.

    Attributes:
        high: int64 values run from 0 to ``high - 1``; 0 where nobody knows.
    """

    high: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high < 0 or (self.high and self.dtype != "int64"):
            raise ValueError(f"{self.dtype} values cannot run from 0 to {self.high - 1}")


class SlotPlan(msgspec.Struct, frozen=True):
    """A slot resolved for one model: see :class:`Slot`."""

    role: Role
    tensors: TensorSpecs
    first: str | float | None = None
    reduce: Reduce | None = None
    addressed: bool = False


class Amend(msgspec.Struct, frozen=True, array_like=True):
    """How a KEEP slot follows what the server got, where a codec changed an upload on its way.

    A KEEP slot whose sum, mean or copy the server has must be what follows from the upload as it arrived.  The device's
    graphs computed it from the upload as it was, so the agent adds ``factor`` times the difference of the two, divided
    by the round's steps where ``per_step``.

    Attributes:
        keep: the KEEP slot.
        up: the UP slot that it follows from, of the same tensors.
    """

    keep: Annotated[str, Meta(min_length=1, max_length=64)]
    up: Annotated[str, Meta(min_length=1, max_length=64)]
    factor: float = 1.0
    per_step: bool = False


class Entry(StrEnum):
    """The graphs a bundle may hold."""

    BEGIN = "begin"  # once a round
    PREPARE = "prepare"  # once a minibatch, before inner
    INNER = "inner"  # inner_steps times on each minibatch
    STEP = "step"  # once a minibatch
    FINISH = "finish"  # once a round; gives every UP slot
    TUNE = "tune"  # personalises before evaluation and prediction, the shared part frozen
    MODELS = "models"  # slots -> the parameters of each model this device can predict with
    EVALUATE = "evaluate"  # parameters, labelled minibatch -> weighted sums of loss and metrics, and of the weights
    PREDICT = "predict"  # parameters, inputs -> outputs


class Kind(StrEnum):
    """What a graph's input or output is."""

    SLOT = "slot"  # group: slot, tensor: tensor's name
    HYPER = "hyper"  # group: hyperparameter
    BATCH = "batch"  # group: x, y or weight, tensor: of x, the number of the input
    MODEL = "model"  # group: model's name ("" = whichever is evaluated), tensor: tensor's name
    METRIC = "metric"  # group: metric
    OUTPUT = "output"  # the model's output


class Port(msgspec.Struct, frozen=True):
    """One input or output of a graph, and what of the device's state it is bound to."""

    name: str  # in the graph file
    kind: Kind
    group: str
    spec: TensorSpec
    tensor: str = ""


class Graph(msgspec.Struct, frozen=True):
    """The border of one graph."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class BatchPlan(msgspec.Struct, frozen=True):
    """A minibatch: static ``size`` rows, the last of them padding with weight 0 where data runs out."""

    size: int
    x: tuple[ExampleSpec, ...]  # each input
    y: ExampleSpec

    def __post_init__(self) -> None:
        if not 0 < len(self.x) <= INPUT_LIMIT:
            raise ValueError(f"{len(self.x)} inputs are outside 1 .. {INPUT_LIMIT}")
        if not 0 < self.size <= BATCH_LIMIT:
            raise ValueError(f"a minibatch of {self.size} rows is outside 1 .. 2^16")


class Plan(msgspec.Struct, frozen=True):
    """One algorithm on one model.

    Attributes:
        algorithm: its name in ``edgepfl.algorithms``.
        fixed: the hyperparameters that shaped the graphs.
        hyper: the hyperparameters that are inputs of the graphs, with their defaults.
        server: the hyperparameters that only the coordinator uses, with their defaults.
        model: the parameters and running statistics by name.
        personal: the parameters that stay on the device, where the algorithm has such.
        models: what :attr:`Entry.MODELS` gives; the first is the device's own.
        title: the model's name, for people.
        served: the tensors of each of ``models``; empty where they are those of ``model``.
        dims: the dimensions that slots name.
        statistics: the running statistics among the tensors of ``model``.
    """

    algorithm: str
    fixed: dict[str, int | bool | str]
    hyper: dict[str, float]
    server: dict[str, float | str]
    slots: dict[str, SlotPlan]
    graphs: dict[Entry, Graph]
    batch: BatchPlan
    model: TensorSpecs
    models: tuple[str, ...]
    personal: tuple[str, ...] = ()
    inner_steps: int = 0
    title: str = ""
    format: int = FORMAT
    served: TensorSpecs = {}
    dims: dict[str, int] = {}
    statistics: tuple[str, ...] = ()

    @property
    def predictor(self) -> TensorSpecs:
        """The tensors of a model that predicts."""
        return self.served or self.model

    @property
    def stacked(self) -> list[str]:
        """The UP slots of which the server needs each device's own, sorted."""
        return sorted(name for name, slot in self.by_role(Role.UP).items() if slot.reduce is Reduce.STACK)

    @property
    def addressed(self) -> list[str]:
        """The DOWN slots of which each device gets a value of its own, sorted."""
        return sorted(name for name, slot in self.by_role(Role.DOWN).items() if slot.addressed)

    def by_role(self, role: Role) -> dict[str, SlotPlan]:
        """The slots of one role, by name."""
        return {name: slot for name, slot in self.slots.items() if slot.role is role}


def tensors_of(
    shape: Shape | Dims,
    model: Mapping[str, TensorSpec],
    personal: tuple[str, ...],
    dims: Mapping[str, int] = MappingProxyType({}),
) -> TensorSpecs:
    """The tensors of a slot of this shape, for a model whose ``personal`` parameters are named.

    Raises:
        PlanError: a dimension's name is not among ``dims``.
    """
    match shape:
        case Shape.PARAMS:
            return dict(model)
        case Shape.SHARED:
            return {name: spec for name, spec in model.items() if name not in personal}
        case Shape.PERSONAL:
            return {name: model[name] for name in personal}
        case Shape.SCALAR:
            return {"": TensorSpec(())}
        case tuple():
            return {"": TensorSpec(tuple(_size(each, dims) for each in shape))}


def _size(dim: int | str, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim not in dims:
        raise PlanError(
            f"the model has no dimension {dim!r}",
            where="slots",
            remedy=f"It has {', '.join(sorted(dims)) or 'none'}",
        )
    return dims[dim]


def resolve(
    slots: Mapping[str, Slot],
    model: Mapping[str, TensorSpec],
    personal: tuple[str, ...],
    hyper: Collection[str] = (),
    dims: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, SlotPlan]:
    """Each slot's tensors for one model.

    Args:
        slots: what an algorithm declares.
        model: the parameters and running statistics.
        personal: those of them that stay on the device.
        hyper: the runtime hyperparameters.
        dims: the dimensions that slots may name.

    Raises:
        PlanError: a personal parameter, a dimension or what a KEEP slot starts from is not there, or an UP slot has no
            reduction.
    """
    if missing := sorted(set(personal) - model.keys()):
        raise PlanError(f"the model has no parameter {missing[0]!r}", where="personal")
    resolved = {
        name: SlotPlan(
            slot.role, tensors_of(slot.shape, model, personal, dims), slot.first, slot.reduce, slot.addressed
        )
        for name, slot in slots.items()
    }
    for name, slot in resolved.items():
        _check(name, slot, resolved, model, hyper)
    return resolved


def _check(
    name: str,
    slot: SlotPlan,
    slots: Mapping[str, SlotPlan],
    model: Mapping[str, TensorSpec],
    hyper: Collection[str],
) -> None:
    where = f"slot {name}"
    if slot.role is Role.UP and slot.reduce is None:
        raise PlanError("an UP slot needs a reduction", where=where, remedy="Declare it with up(Reduce.MEAN)")
    if slot.role is not Role.KEEP:
        return
    if slot.first is None:
        raise PlanError("a KEEP slot needs a first value", where=where, remedy="Declare it with keep(first=...)")
    if not isinstance(slot.first, str) or slot.first in hyper:
        return
    available = model
    if slot.first != MODEL:
        source = slots.get(slot.first)
        if source is None or source.role is not Role.DOWN:
            raise PlanError(
                f"it starts from {slot.first!r}, which is no DOWN slot and no runtime hyperparameter",
                where=where,
            )
        available = source.tensors
    if any(available.get(tensor) != spec for tensor, spec in slot.tensors.items()):
        raise PlanError(f"it starts from {slot.first!r}, which has other tensors", where=where)
