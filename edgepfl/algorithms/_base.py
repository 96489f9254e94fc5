"""What an algorithm is: a frozen value with a table of slots and the mathematics of both sides.

A device's round, in terms of the functions below::

    s = DOWN and KEEP slots
    s |= begin(s)
    for each minibatch b:
        inner_steps times:  s |= inner(s, b)
        s |= step(s, b)
    s |= finish(s)          # now s has every UP slot

Each function returns only the slots that change.  The device's functions are traced once into graphs, so they are pure
and do not branch on the values of tensors.
"""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, TypeAlias

import numpy as np

from edgepfl.plan import Entry, Role, Slot, Weighting
from edgepfl.tree import Tensor, Tree, Trees

RUNTIME = "runtime input"
Scalar: TypeAlias = Annotated[float, RUNTIME]
"""A hyperparameter that the graphs take as an input: changing it needs no new export."""


class Minibatch(Protocol):
    """One minibatch, as the device's functions see it while they are traced.

    Attributes:
        x: inputs, ``(size, ...)``.
        y: targets, ``(size, ...)``.
        weight: ``(size,)``, 0 for padding rows.
    """

    x: Tensor
    y: Tensor
    weight: Tensor

    def grad(self, params: Tree) -> Tree:
        """The gradient at ``params`` of the weighted mean loss over the batch."""
        ...

    def value_and_grad(self, objective: Callable[[Tree], Tensor], params: Tree) -> tuple[Tensor, Tree]:
        """The value and gradient at ``params`` of an objective of the algorithm's own."""
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
    """

    devices: tuple[str, ...]
    examples: tuple[int, ...]
    steps: tuple[int, ...]
    total: Trees
    stack: Trees


@dataclass(frozen=True)
class Algorithm(ABC):
    """A federated algorithm.

    Fields annotated :data:`Scalar` are runtime inputs of the graphs; ``int`` and ``bool`` fields shape the graphs;
    ``float`` and enumeration fields are the server's.
    """

    slots: ClassVar[Mapping[str, Slot]]
    inner_steps: int = 0
    weighting: Weighting = Weighting.EXAMPLES

    # The device.

    def begin(self, s: Trees) -> Trees:  # noqa: ARG002  the default changes nothing
        """Once a round, before its first minibatch."""
        return {}

    def inner(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  likewise
        """``inner_steps`` times on each minibatch, before :meth:`step`."""
        return {}

    @abstractmethod
    def step(self, s: Trees, b: Minibatch) -> Trees:
        """Once a minibatch: the next state."""

    @abstractmethod
    def finish(self, s: Trees) -> Trees:
        """Once a round, after its last minibatch: every UP slot, and KEEP slots that change here."""

    def tune(self, s: Trees, b: Minibatch) -> Trees:  # noqa: ARG002  likewise
        """Personalise before evaluation and prediction, with the shared part frozen."""
        return {}

    @abstractmethod
    def predictor(self, s: Trees) -> Tree:
        """The parameters this device predicts with, from DOWN, KEEP and what begin and tune made."""

    def others(self, s: Trees) -> Trees:  # noqa: ARG002  likewise
        """Further models worth evaluating on the device, by name ("global")."""
        return {}

    # The server.

    def init(self, params: Tree) -> Trees:
        """The state before the first round.

        Args:
            params: the initial model, or its shared part where the DOWN slots hold only that.
        """
        return {"w": params}

    def send(self, state: Trees, device: str) -> Trees:  # noqa: ARG002  broadcast slots are everyone's
        """The DOWN slots of one device."""
        return {name: state[name] for name, slot in self.slots.items() if slot.role is Role.DOWN}

    @abstractmethod
    def update(self, state: Trees, got: Cohort) -> Trees:
        """The state after a round."""

    def local_steps(self, usual: int, rng: np.random.Generator) -> int:  # noqa: ARG002  some toss the server's coins
        """How many minibatch steps the cohort takes this round."""
        return usual


def hyperparameters(kind: type[Algorithm]) -> dict[str, str]:
    """Each field of an algorithm and what it is: "runtime", "fixed" or "server"."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _role_of(hints[field.name]) for field in dataclasses.fields(kind)}


def has(kind: type[Algorithm], entry: Entry) -> bool:
    """Whether an algorithm defines a device function of its own for this graph."""
    match entry:
        case Entry.BEGIN | Entry.INNER | Entry.TUNE:
            return getattr(kind, entry.value) is not getattr(Algorithm, entry.value)
        case _:
            return True


def _role_of(hint: object) -> str:
    if RUNTIME in getattr(hint, "__metadata__", ()):
        return "runtime"
    if hint in (int, bool):
        return "fixed"
    return "server"
