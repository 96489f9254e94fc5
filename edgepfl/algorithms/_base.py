"""What an algorithm is: a frozen value with a table of slots and the mathematics of both sides.

A device's round, in terms of the functions below::

    s = DOWN and KEEP slots
    s |= begin(s)
    for each minibatch b:
        s |= prepare(s, b)
        inner_steps times:  s |= inner(s, b)
        s |= step(s, b)
    s |= finish(s)          # now s has every UP slot

Each function returns only the slots that change.  The device's functions are traced once into graphs, so they are pure
and do not branch on the values of tensors.

The server's round::

    steps, hyper = local_steps(usual, rng), round_hyper(number, rng)
    send(state, device) to each device of the cohort
    each upload |= rebuild(upload, steps)       # with the round's hyperparameters
    state = update(state, cohort)               # likewise
    state = conclude(state)                     # once, after the last round that trains
"""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Protocol, TypeAlias

import numpy as np

from edgepfl.errors import ConfigError
from edgepfl.plan import Amend, Entry, Reduce, Role, Slot, TensorSpecs, Weighting
from edgepfl.tree import Tensor, Tree, Trees

RUNTIME = "runtime input"
SHAPES = "shapes the graphs"
SERVERS = "the server's"
Scalar: TypeAlias = Annotated[float, RUNTIME]
"""A hyperparameter that the graphs take as an input: changing it needs no new export."""


Across: TypeAlias = Callable[[Tensor], Tensor]
"""From a sum over the columns that one shard of the server holds to the sum over all columns, any shape."""


def whole(partial: Tensor) -> Tensor:
    """The :data:`Across` of a server that is not sharded."""
    return partial


class Participation(StrEnum):
    """Which devices must take part in a round for a method's theory to hold."""

    ANY = "any"
    ALL = "all"


class Predicting(Protocol):
    """A minibatch without targets, as :meth:`Algorithm.predict` sees it."""

    def outputs(self, params: Tree) -> Tensor:
        """What the model gives with these parameters, ``(size, ...)``."""
        ...

    def mixture(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Several models' outputs as one: of classifiers, the logits of the weighted mean of their probabilities.

        Args:
            outputs: each ``(size, ...)``.
            weights: ``(len(outputs),)``, which sum to 1.
        """
        ...

    def represent(self, params: Tree) -> tuple[Tensor, Tensor]:
        """What the extractor gives, ``(size, width)`` each: means, and scales before they are made positive."""
        ...

    def judge_head(self, params: Tree, z: Tensor) -> Tensor:
        """What the head gives for representations ``(size, width)``."""
        ...


class Minibatch(Predicting, Protocol):
    """One minibatch, as the device's functions see it while they are traced.

    Attributes:
        x: each of the model's inputs, ``(size, ...)``.
        y: targets, ``(size, ...)``.
        weight: ``(size,)``, 0 for padding rows.
    """

    x: tuple[Tensor, ...]
    y: Tensor
    weight: Tensor

    def grad(self, params: Tree) -> Tree:
        """The gradient at ``params`` of the weighted mean loss over the batch."""
        ...

    def value_and_grad(self, objective: Callable[[Tree], Tensor], params: Tree) -> tuple[Tensor, Tree]:
        """The value and gradient at ``params`` of an objective of the algorithm's own."""
        ...

    def losses(self, outputs: Tensor) -> Tensor:
        """The loss of each row, ``(size,)``."""
        ...

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of one number for each row: ``(size,)`` to a scalar; 0 where every row is padding."""
        ...

    def parts(self, count: int) -> tuple[Minibatch, ...]:
        """Disjoint minibatches that together are this one: row ``i`` goes to part ``i % count``."""
        ...


@dataclass(frozen=True)
class Cohort:
    """What a round brought in.

    Attributes:
        devices: whose reports count, in the order of their names.
        examples: how many each trains on.
        steps: how many minibatch steps each really took.
        total: the reduced MEAN and SUM slots.
        stack: the STACK slots, device first.
        number: of the round, from 1.
        fleet: every device that the run knows, the cohort's among them, in the order of their names.
        statistics: the tensors of the model that are running statistics: they are averaged, and no correction,
            dual variable or regulariser touches them.
        across: makes sums over columns whole where the server is sharded: each shard holds some of the columns of every
            tensor that is shaped like a model, and all of every other tensor.
    """

    devices: tuple[str, ...]
    examples: tuple[int, ...]
    steps: tuple[int, ...]
    total: Trees
    stack: Trees
    number: int = 1
    fleet: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    across: Across = whole


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated algorithm.

    Fields annotated :data:`Scalar` are runtime inputs of the graphs; ``int`` and ``bool`` fields, and those annotated
    ``Annotated[..., SHAPES]``, shape the graphs; ``float`` and enumeration fields, and those annotated
    ``Annotated[..., SERVERS]``, are the server's.

    Attributes:
        slots: what a device keeps, gets and sends; see :meth:`declared`.
        refused: weightings of MEAN slots that break the theory, each with the reason.
        participation: which devices must take part.
        evaluated: the model that the paper evaluates, for people.
        personal_default: patterns of the personal parameters where the user names none.
        represented: whether the model must represent its inputs by normal distributions, as :class:`Predicting` says.
        revealed: KEEP slots whose values the method uploads or tells, so that the server sees each device's own.
        grows: the numbers in the server's state that each device of the fleet adds: a sum of products of ``m``, how
            many they are, and of ``d``, all parameters, ``d_f``, the shared and ``d_h``, the personal ones.
        inner_steps: steps of the inner solve on each minibatch.
        weighting: how means over the cohort are weighted: by examples, or uniform.
    """

    slots: ClassVar[Mapping[str, Slot]]
    refused: ClassVar[Mapping[Weighting, str]] = {}
    participation: ClassVar[Participation] = Participation.ANY
    evaluated: ClassVar[str] = ""
    personal_default: ClassVar[tuple[str, ...]] = ()
    represented: ClassVar[bool] = False
    revealed: ClassVar[tuple[str, ...]] = ()
    grows: ClassVar[str] = ""
    inner_steps: int = 0
    weighting: Weighting = Weighting.EXAMPLES

    def check(self) -> None:
        """Refuse hyperparameters that contradict each other or the theory.

        Raises:
            ConfigError: with the reason.
        """
        if self.weighting in self.refused:
            raise ConfigError(
                f"weighting = {self.weighting} will not do: {self.refused[self.weighting]}",
                where=type(self).__name__,
                remedy=f"Leave it at {' or '.join(w for w in Weighting if w not in self.refused)}",
            )

    def declared(self) -> Mapping[str, Slot]:
        """The slots with these hyperparameters, where options change what crosses."""
        return self.slots

    @property
    def rebuilt(self) -> Mapping[str, Reduce]:
        """The slots that :meth:`rebuild` gives, and how they are combined; a class variable where no option matters."""
        return {}

    @property
    def amended(self) -> tuple[Amend, ...]:
        """The KEEP slots of which the server knows the sum, the mean or a copy, by the uploads: see :class:`Amend`.

        Exact where a codec rounds.  Codecs that leave numbers out are refused for an algorithm that has any: what they
        owe would be counted twice, by the device's error feedback and by the method's own memory.
        """
        return ()

    # The device.

    def begin(self, s: Trees) -> Trees:  # noqa: ARG002  the default changes nothing
        """Once a round, before its first minibatch."""
        return {}

    def prepare(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  likewise
        """Once on each minibatch, before :meth:`inner`."""
        return {}

    def inner(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  likewise
        """``inner_steps`` times on each minibatch, before :meth:`step`."""
        return {}

    @abstractmethod
    def step(self, s: Trees, b: Minibatch) -> Trees:
        """Once a minibatch: the next state."""

    @abstractmethod
    def finish(self, s: Trees) -> Trees:
        """Once a round, after its last minibatch: every UP and TELL slot, and KEEP slots that change here."""

    def tune(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  likewise
        """Personalise before evaluation and prediction, with the shared part frozen."""
        return {}

    @abstractmethod
    def predictor(self, s: Trees) -> Tree:
        """The parameters this device predicts with, from DOWN, KEEP and what begin and tune made."""

    def others(self, s: Trees) -> Trees:  # noqa: ARG002  likewise
        """Further models worth evaluating on the device, by name ("global"), of the same tensors."""
        return {}

    def served(self, model: TensorSpecs) -> TensorSpecs:
        """The tensors that :meth:`predictor` gives, where they are not one model's."""
        return model

    def predict(self, m: Predicting, params: Tree) -> Tensor:
        """The outputs of what :meth:`predictor` gave."""
        return m.outputs(params)

    # The server.

    def init(self, params: Tree) -> Trees:
        """The state before the first round.

        Args:
            params: the initial model, or its shared part where the DOWN slots hold only that.
        """
        return {"w": params}

    def init_apart(self, shared: Tree, personal: Tree) -> Trees:
        """Likewise, for a method whose DOWN slots hold both parts of the model, each in slots of its own.

        Args:
            shared: the tensors that no personal pattern names.
            personal: those that one does, where a DOWN slot holds them.
        """
        return self.init(shared | personal)

    def send(self, state: Trees, device: str) -> Trees:  # noqa: ARG002  broadcast slots are everyone's
        """The DOWN slots of one device."""
        return {name: state[name] for name, slot in self.declared().items() if slot.role is Role.DOWN}

    def send_each(self, state: Trees, devices: Sequence[str]) -> Mapping[str, Trees]:
        """The DOWN slots of each of these devices; for methods that can make many at once."""
        return {device: self.send(state, device) for device in devices}

    def rebuild(self, upload: Trees, steps: int) -> Trees:  # noqa: ARG002  most upload all that is needed
        """The slots of :attr:`rebuilt`, computed from one device's upload instead of sent.

        Args:
            upload: its UP slots.
            steps: how many minibatch steps it took, at least 1.
        """
        return {}

    @abstractmethod
    def update(self, state: Trees, got: Cohort) -> Trees:
        """The state after a round."""

    def conclude(self, state: Trees) -> Trees:
        """The state of the final evaluation, from that of the last round that trained."""
        return state

    def local_steps(self, usual: int, rng: np.random.Generator) -> int:  # noqa: ARG002  some toss the server's coins
        """How many minibatch steps the cohort takes this round."""
        return usual

    def round_hyper(self, number: int, rng: np.random.Generator) -> Mapping[str, float]:  # noqa: ARG002  likewise
        """Runtime hyperparameters of one round that differ from the run's.

        Args:
            number: of the round, from 1.
            rng: the round's coins.
        """
        return {}


def hyperparameters(kind: type[Algorithm]) -> dict[str, str]:
    """Each field of an algorithm and what it is: "runtime", "fixed" or "server"."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _role_of(hints[field.name]) for field in dataclasses.fields(kind)}


def has(kind: type[Algorithm], entry: Entry) -> bool:
    """Whether an algorithm defines a device function of its own for this graph."""
    match entry:
        case Entry.BEGIN | Entry.PREPARE | Entry.INNER | Entry.TUNE:
            return getattr(kind, entry.value) is not getattr(Algorithm, entry.value)
        case _:
            return True


def _role_of(hint: object) -> str:
    marks = getattr(hint, "__metadata__", ())
    if RUNTIME in marks:
        return "runtime"
    if SHAPES in marks or hint in (int, bool):
        return "fixed"
    return "server"
