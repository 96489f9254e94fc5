"""Three levels: a hub is a coordinator to its own devices and a device to the centre.

Two forms, after the sub-centres of Liu et al. 2023 (pFedMac); with ``w`` the centre's model and ``u`` the hub's::

    tree     u <- w;  tau_h rounds from u with the hub's devices;  up: u - w
    nested   tau_h times:  u <- (a round from u) + step mu w;      up: lr mu (u - w)

The tree averages in two stages: with ``tau_h = 1`` it is the two-level method with all devices.  In the nested form the
hub is a device of the centre whose loss is its own devices' mean ``G_h``, and keeps ``u`` from round to round::

    F_h(w) = min_u G_h(u) - mu <u, w> + mu/2 |w|^2,     grad F_h(w) = mu (w - u_h(w))

The centre weights hubs by what took part under them, and moves ``w`` by its algorithm's own update.  Everything here is
a pure function of NumPy trees: what a hub keeps advances when the centre accepts its report, as a device's KEEP slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from coordinator import updater
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Role, Slot
from edgepfl.tree import Tree, Trees


@dataclass(frozen=True)
class Nested:
    """The nested form's own hyperparameters.

    Attributes:
        mu: weight of the correlation between ``u`` and ``w``.
        lr: step size of the hub's copy of ``w`` along ``-grad F_h``; ``lr mu`` is below 1.
        step: how long a step along ``-grad G_h`` one round of the hub's devices is: of pFedMe and pFedMac
            ``beta lr R`` with ``R`` minibatches a round, of FedAvg ``server_lr lr R``.
    """

    mu: float
    lr: float
    step: float

    def __post_init__(self) -> None:
        if not (self.mu >= 0 and self.step > 0 and 0 <= self.lr * self.mu < 1):
            raise ConfigError(
                f"mu = {self.mu:g}, lr = {self.lr:g}, step = {self.step:g} are no step towards the hub's model",
                where="hub",
                remedy="Choose mu >= 0, step > 0 and 0 <= lr * mu < 1",
            )


@dataclass(frozen=True)
class Hub:
    """A coordinator to its devices and a device to its centre.

    Attributes:
        algorithm: that its devices run.  In a tree the step of the server counts on both levels, so one of them
            should have 1.
        rounds: ``tau_h``, rounds of its own in one of the centre's.
        nested: the nested form's hyperparameters; None is the tree.

    Raises:
        ConfigError: the algorithm moves more than one model, or it has no rounds.
    """

    algorithm: Algorithm
    rounds: int = 1
    nested: Nested | None = None

    def __post_init__(self) -> None:
        one_model(self.algorithm)
        if self.rounds < 1:
            raise ConfigError(f"a hub of {self.rounds} rounds does nothing", where="hub", remedy="Give it 1 or more")

    @property
    def slots(self) -> tuple[str, str]:
        """The DOWN slot with the model, and the UP slot with its change."""
        return one_model(self.algorithm)

    def moved(self, u: Tree, w: Tree, got: Cohort) -> Tree:
        """The hub's model after one round of its own.

        Args:
            u: before it.
            w: the centre's model.
            got: what the round brought in.

        Raises:
            RunError: it is not finite.
        """
        down, _ = self.slots
        after = _next_state(self.algorithm, {down: u}, got)[down]
        return after if self.nested is None else after + self.nested.step * self.nested.mu * w

    def change(self, u: Tree, w: Tree) -> Tree:
        """The change of the centre's model ``w`` that a hub asks for whose own has become ``u``."""
        return u - w if self.nested is None else self.nested.lr * self.nested.mu * (u - w)


def one_model(algorithm: Algorithm) -> tuple[str, str]:
    """The DOWN slot with the model and the UP slot with its change, of an algorithm that moves nothing else.

    A hub stands between such an algorithm's server and devices without either noticing.

    Raises:
        ConfigError: it moves more or something else, with the reason.
    """
    down = _only(algorithm, Role.DOWN, "sends")
    up = _only(algorithm, Role.UP, "collects")
    slots = algorithm.declared()
    if slots[down].addressed:
        _refuse(algorithm, f"it sends each device a {down} of its own")
    if slots[up].reduce is not Reduce.MEAN or slots[up].shape != slots[down].shape:
        _refuse(algorithm, f"{up} is not averaged into a change of {down}")
    if algorithm.rebuilt:
        _refuse(algorithm, f"its server rebuilds {', '.join(algorithm.rebuilt)} from each device's upload")
    for coin in ("local_steps", "round_hyper"):
        if getattr(type(algorithm), coin) is not getattr(Algorithm, coin):
            _refuse(algorithm, "its server tosses coins for all devices at once")
    _probe(algorithm, down, up)
    return down, up


def _next_state(algorithm: Algorithm, state: Trees, got: Cohort) -> Trees:
    return updater.numpy_of(updater.next_state(algorithm, updater.torch_of(state), got))


def _only(algorithm: Algorithm, role: Role, does: str) -> str:
    slots: dict[str, Slot] = {name: slot for name, slot in algorithm.declared().items() if slot.role is role}
    if len(slots) != 1:
        _refuse(algorithm, f"it {does} {' and '.join(slots) or 'nothing'}")
    return next(iter(slots))


def _probe(algorithm: Algorithm, down: str, up: str) -> None:
    """A server that has the model alone and adds the mean change to it leaves it alone when the change is 0."""
    model = Tree.scalar(torch.ones(1))
    if memory := sorted(algorithm.init(model).keys() - {down}):
        _refuse(algorithm, f"its server remembers {' and '.join(memory)}, which a hub's new start would contradict")
    still = Cohort(("a",), (1,), (1,), {up: 0 * model}, {}, fleet=("a",))
    after = algorithm.update({down: model}, still)
    if after.keys() != {down} or not torch.equal(after[down].value, model.value):
        _refuse(algorithm, f"{up} is not a change of {down}")


def _refuse(algorithm: Algorithm, reason: str) -> NoReturn:
    raise ConfigError(
        f"it cannot run under a hub: {reason}",
        where=type(algorithm).__name__,
        remedy="Run it on two levels, or choose an algorithm that moves one model, such as pfedmac",
    )
