"""Optimisers of the server: what it adds to its model in place of the cohort's mean change.

Reddi et al. 2021, "Adaptive federated optimization", algorithm 2, without bias correction; with ``D`` the mean change::

    sgd          step = lr D
    momentum     m <- beta1 m + D;                 step = lr m                     (Hsu et al. 2019)
    fedadagrad   v <- v + D^2;                     step = lr m / (sqrt(v) + tau)   m <- beta1 m + (1 - beta1) D
    fedyogi      v <- v - (1 - beta2) D^2 sign(v - D^2);         likewise
    fedadam      v <- beta2 v + (1 - beta2) D^2;                 likewise

from ``m = 0`` and ``v = tau^2``.  The step takes the place of ``D`` in what the round brought in, so the algorithm's
own update adds it, times its own server step.  ``m`` and ``v`` lie beside the algorithm's slots in the server's state,
as ``opt.m.SLOT`` and ``opt.v.SLOT``, names that no slot of an algorithm can have.  Running statistics are no
parameters: their mean change is added as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np
import torch

from edgepfl.algorithms import Algorithm, Cohort, Participation
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Reduce, Role, SlotPlan, TensorSpec
from edgepfl.tree import Tree, Trees

PREFIX = "opt."
"""How the names of an optimiser's own slots begin."""


class Kind(StrEnum):
    """The optimisers there are."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAGRAD = "fedadagrad"
    YOGI = "fedyogi"
    ADAM = "fedadam"


_DEFAULTS: Mapping[Kind, Mapping[str, float]] = {
    Kind.SGD: {"lr": 1.0},
    Kind.MOMENTUM: {"lr": 1.0, "beta1": 0.9},
    Kind.ADAGRAD: {"lr": 0.1, "beta1": 0.0, "tau": 1e-3},
    Kind.YOGI: {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    Kind.ADAM: {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
}


@dataclass(frozen=True)
class Optimiser:
    """One of :class:`Kind`, with its hyperparameters.

    Attributes:
        kind: which.
        lr: step size.
        beta1: what is left of the momentum each round, 0 to 1.
        beta2: likewise of the mean square, 0 to 1.
        tau: added to its root; greater is less adaptive.
    """

    kind: Kind
    lr: float
    beta1: float = 0.0
    beta2: float = 0.0
    tau: float = 0.0

    def step(self, change: Tree, memory: Trees) -> tuple[Tree, Trees]:
        """The step in place of a mean change, and what to remember.

        Args:
            change: ``D``.
            memory: "m" and "v" from the last step, as far as there are such; nothing before the first.
        """
        if self.kind is Kind.SGD:
            return (change if self.lr == 1 else self.lr * change), {}
        old = memory.get("m", 0 * change)
        if self.kind is Kind.MOMENTUM:
            m = self.beta1 * old + change
            return self.lr * m, {"m": m}
        m = self.beta1 * old + (1 - self.beta1) * change
        v = self._second(memory.get("v", change.map(lambda x: torch.full_like(x, self.tau**2))), change)
        return self.lr * m.zip(lambda a, b: a / (b.sqrt() + self.tau), v), {"m": m, "v": v}

    def _second(self, v: Tree, change: Tree) -> Tree:
        square = change.map(torch.square)
        match self.kind:
            case Kind.ADAGRAD:
                return v + square
            case Kind.YOGI:
                return v - (1 - self.beta2) * square.zip(lambda s, old: s * torch.sign(old - s), v)
            case _:
                return self.beta2 * v + (1 - self.beta2) * square


def apart(state: Trees) -> Trees:
    """The server's state without an optimiser's own slots."""
    return {slot: tree for slot, tree in state.items() if not slot.startswith(PREFIX)}


@dataclass(frozen=True)
class Server:
    """An optimiser at work on one algorithm.

    Attributes:
        optimiser: which.
        slots: the UP slots whose means it takes the place of.
    """

    optimiser: Optimiser
    slots: tuple[str, ...]

    def stepped(self, state: Trees, got: Cohort) -> tuple[Cohort, Trees]:
        """What the round brought in with steps in place of mean changes, and the optimiser's new slots.

        Args:
            state: the server's, the optimiser's slots among it.
            got: what the round brought in.
        """
        total = dict(got.total)
        memory: dict[str, Tree] = {}
        for slot in self.slots:
            change = total[slot]
            trained = change.like([name for name in change if name not in got.statistics])
            kept = {part: state[f"{PREFIX}{part}.{slot}"] for part in "mv" if f"{PREFIX}{part}.{slot}" in state}
            step, now = self.optimiser.step(trained, kept)
            total[slot] = change | step
            memory |= {f"{PREFIX}{part}.{slot}": tree for part, tree in now.items()}
        return dataclasses.replace(got, total=total), memory


def optimiser_of(words: str) -> Optimiser | None:
    """The optimiser that a person names; None for no words.

    Args:
        words: a name, and perhaps hyperparameters: ``fedadam:lr=0.1,beta1=0.9,beta2=0.99,tau=0.001``.

    Raises:
        ConfigError: there is none of this name, or a hyperparameter that it does not have or cannot be.
    """
    if not words:
        return None
    name, _, rest = words.partition(":")
    if name not in set(Kind):
        raise _wrong(words, f"there is no {name[:80]!r}")
    kind = Kind(name)
    values = dict(_DEFAULTS[kind])
    for setting in rest.split(",") if rest else ():
        key, _, text = setting.partition("=")
        if key not in values:
            raise _wrong(words, f"{name} has {', '.join(values)}")
        values[key] = _number(words, key, text)
    return Optimiser(kind, **values)


def added(algorithm: Algorithm, plan: Plan, first: Callable[[Plan, Tree], Trees]) -> tuple[str, ...]:
    """The UP slots whose mean the server adds to one of its DOWN slots, times a number, and uses for nothing else.

    Found by trying the update on a model of one number a tensor.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        first: the server's state before the first round, torch, of a plan and a model in NumPy.

    Raises:
        ConfigError: there is none, with the reason.
    """
    found, why = summands(algorithm, plan, first)
    if not found:
        raise _unusable(algorithm, why)
    return found


def summands(algorithm: Algorithm, plan: Plan, first: Callable[[Plan, Tree], Trees]) -> tuple[tuple[str, ...], str]:
    """What :func:`added` gives; or nothing, and the reason."""
    if algorithm.participation is Participation.ALL:
        return (), "its devices count on the server's model being their mean"
    thin = _thin(plan)
    model = Tree({name: np.full(spec.shape, 0.5, np.float32) for name, spec in thin.model.items()})
    state = {slot: tree.map(torch.Tensor.double) for slot, tree in first(thin, model).items()}
    got = _still(algorithm, thin)
    found: list[str] = []
    others: set[str] = set()
    for name, slot in thin.by_role(Role.UP).items():
        if slot.reduce is Reduce.MEAN and slot.tensors:
            moved = _moved(algorithm, state, got, name)
            if len(moved) == 1 and _is_added(thin, moved, got.total[name]):
                found.append(name)
            others |= moved.keys()
    if found:
        return tuple(found), ""
    return (), f"a mean moves {' and '.join(sorted(others))} at once" if others else "it adds no mean to what it sends"


def _moved(algorithm: Algorithm, state: Trees, got: Cohort, name: str) -> Trees:
    """By how much each slot of the state moves for a change of 1, 2, 3, ... in the tensors of an UP slot."""
    change = Tree({key: tensor + place for place, (key, tensor) in enumerate(got.total[name].items(), 1)})
    still = algorithm.update(_copied(state), got)
    after = algorithm.update(_copied(state), dataclasses.replace(got, total={**got.total, name: change}))
    moved = {}
    for slot, tree in after.items():
        if tree.keys() != still[slot].keys():
            moved[slot] = tree
        elif any(not torch.equal(tensor, still[slot][key]) for key, tensor in tree.items()):
            moved[slot] = tree - still[slot]
    return moved


def _is_added(plan: Plan, moved: Trees, like: Tree) -> bool:
    [(slot, tree)] = moved.items()
    declared = plan.slots.get(slot)
    if declared is None or declared.role is not Role.DOWN or declared.addressed or tree.keys() != like.keys():
        return False
    first = float(next(iter(tree.values())).max())
    return all(
        torch.allclose(tensor, torch.full_like(tensor, first * place)) for place, tensor in enumerate(tree.values(), 1)
    )


def _thin(plan: Plan) -> Plan:
    """The plan with one number in each tensor of the model."""

    def thin(tensors: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        return {
            name: TensorSpec((1,) * len(spec.shape)) if plan.model.get(name) == spec else spec
            for name, spec in tensors.items()
        }

    slots: dict[str, SlotPlan] = {
        name: msgspec.structs.replace(slot, tensors=thin(slot.tensors)) for name, slot in plan.slots.items()
    }
    return msgspec.structs.replace(plan, model=thin(plan.model), slots=slots)


def _still(algorithm: Algorithm, plan: Plan) -> Cohort:
    """What a round of one device brings in that sends zeros."""
    sent = {name: slot.reduce for name, slot in plan.by_role(Role.UP).items()}
    zeros: dict[str, Tree] = {
        name: Tree({key: torch.zeros(spec.shape, dtype=torch.float64) for key, spec in slot.tensors.items()})
        for name, slot in plan.by_role(Role.UP).items()
    }
    rows = {**zeros, **algorithm.rebuild(zeros, 1)} if algorithm.rebuilt else zeros
    how = {**sent, **algorithm.rebuilt}
    stacked = {name: rows[name].map(lambda x: x[None]) for name in rows if how[name] is Reduce.STACK}
    total = {name: rows[name] for name in rows if name not in stacked}
    return Cohort(("a",), (1,), (1,), total, stacked, fleet=("a",))


def _copied(state: Trees) -> Trees:
    return {slot: tree.map(torch.clone) for slot, tree in state.items()}


def _number(words: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise _wrong(words, f"{key} = {text[:80]!r} is no number") from error
    fits = value > 0 if key in {"lr", "tau"} else 0 <= value < 1
    if not (fits and math.isfinite(value)):
        raise _wrong(words, f"{key} must be {'finite, above 0' if key in {'lr', 'tau'} else 'at least 0 and below 1'}")
    return value


def _wrong(words: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{words[:80]!r} will not do: {reason}",
        where="server_optimizer",
        remedy=f"Choose of {', '.join(Kind)}; with hyperparameters: fedadam:lr=0.1,tau=0.001",
    )


def _unusable(algorithm: Algorithm, reason: str) -> ConfigError:
    return ConfigError(
        f"{type(algorithm).__name__} takes no server optimiser: {reason}",
        where="server_optimizer",
        remedy="Leave it out, or choose an algorithm whose server adds the mean change, such as fedavg",
    )
