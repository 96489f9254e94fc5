"""The server's half of an algorithm: its torch state from round to round, and the NumPy trees that cross the wire."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from coordinator import optimisers
from coordinator.exact import Grid
from coordinator.fusion import with_engine
from coordinator.optimisers import Server, apart
from coordinator.reduction import Reduction
from coordinator.robust import Clip, Rule
from edgepfl import algorithms
from edgepfl.algorithms import Across, Algorithm, Cohort, whole
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Plan, Role, SlotPlan, resolve
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees

Settings = dict[str, float | str]


def algorithm_of(plan: Plan, settings: Settings, engine: str = "hybrid") -> Algorithm:
    """The algorithm of a plan, with a run's settings over the plan's defaults.

    Args:
        plan: of the bundle.
        settings: of the run.
        engine: that keeps FPFC's pairs, see :mod:`coordinator.fusion`.

    Raises:
        ConfigError: a setting that the algorithm does not have, or that would need another export.
        RunError: the plan was made by another version of the algorithm.
    """
    built = algorithms.build(plan.algorithm, {**plan.fixed, **plan.server, **plan.hyper, **settings})
    algorithm = with_engine(built, engine)
    for name, shaped in plan.fixed.items():
        if getattr(algorithm, name) != shaped:
            raise ConfigError(
                f"{name} shaped the graphs as {shaped}",
                where=plan.algorithm,
                remedy=f"Export again with --set {name}={settings[name]}",
            )
    _same_slots(algorithm, plan)
    return algorithm


def _same_slots(algorithm: Algorithm, plan: Plan) -> None:
    slots = algorithm.declared()
    models_own = plan.by_role(Role.NOISE).keys() - slots.keys()  # its dropout's
    known = {name: slot for name, slot in plan.slots.items() if name not in models_own}
    if resolve(slots, plan.model, plan.personal, plan.hyper, plan.dims) != known:
        raise RunError(
            "the bundle's slots are not this version's", where=plan.algorithm, remedy="Export the bundle again"
        )


def of_round(
    algorithm: Algorithm, plan: Plan, *, number: int, seed: int, decay: Mapping[str, float] = MappingProxyType({})
) -> Algorithm:
    """The algorithm with the runtime hyperparameters of one round: what decay leaves of them, and those of its coins.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        number: of the round, from 1.
        seed: of the run.
        decay: factors by which hyperparameters change with each round; the coins see what they leave.

    Raises:
        ConfigError: one of ``decay`` is no runtime hyperparameter.
    """
    _known(plan, decay)
    left = _decayed(algorithm, number, decay)
    drawn = left.round_hyper(number, generator(seed, "hyper", number))
    return dataclasses.replace(left, **drawn)  # type: ignore[arg-type]  # floats by name


def check_decay(algorithm: Algorithm, plan: Plan, rounds: int, decay: Mapping[str, float]) -> None:
    """Refuse factors that lead to hyperparameters that the algorithm refuses, or that no device can hold.

    Each hyperparameter only falls or only rises, so it is enough to look where they end: at the evaluation after the
    last round.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        rounds: that train.
        decay: see :func:`of_round`.

    Raises:
        ConfigError: with the reason.
    """
    _known(plan, decay)
    try:
        left = _decayed(algorithm, rounds + 1, decay)
        held = {name: _held(getattr(left, name)) for name in decay}
        dataclasses.replace(left, **held).check()  # type: ignore[arg-type]  # floats by name
    except (ConfigError, OverflowError) as error:
        why = error.what if isinstance(error, ConfigError) else "a hyperparameter is greater than any number"
        raise ConfigError(
            f"in round {rounds + 1}, {why}", where="decay", remedy="Give factors nearer to 1, or fewer rounds"
        ) from error


def _known(plan: Plan, decay: Mapping[str, float]) -> None:
    for name in decay:
        if name not in plan.hyper:
            raise ConfigError(
                f"{plan.algorithm} has no runtime hyperparameter {name!r}",
                where="decay",
                remedy=f"It has {', '.join(sorted(plan.hyper)) or 'none'}",
            )


def _decayed(algorithm: Algorithm, number: int, decay: Mapping[str, float]) -> Algorithm:
    left = {name: float(getattr(algorithm, name)) * factor ** (number - 1) for name, factor in decay.items()}
    return dataclasses.replace(algorithm, **left)  # type: ignore[arg-type]  # floats by name


def _held(value: float) -> float:
    """The number as the devices' graphs have it.

    Raises:
        OverflowError: it is too great for them.
    """
    if abs(value) > float(np.finfo(np.float32).max):
        raise OverflowError
    return float(np.float32(value))


def reduction(
    algorithm: Algorithm,
    plan: Plan,
    cohort: Iterable[str],
    device: str = "cpu",
    rule: Rule | Clip | None = None,
    *,
    exact: Grid | None = None,
    across: Across = whole,
) -> Reduction:
    """What folds a round's uploads, by the round's algorithm and the run's robust rule: see :class:`Reduction`."""
    sent = plan.by_role(Role.UP)
    return Reduction(sent, cohort, algorithm.weighting, device, algorithm, exact=exact, rule=rule, across=across)


def server_of(algorithm: Algorithm, plan: Plan, words: str) -> Server | None:
    """The server optimiser that a run names, at work on its algorithm; None for no words.

    Raises:
        ConfigError: there is no such optimiser, or the algorithm takes none.
    """
    optimiser = optimisers.optimiser_of(words)
    if optimiser is None:
        return None
    return Server(optimiser, optimisers.added(algorithm, plan, functools.partial(first_state, algorithm)))


def first_state(algorithm: Algorithm, plan: Plan, model: Tree, device: str = "cpu") -> Trees:
    """The server's state before round 1, torch, from the initial model, NumPy."""
    sent = {name for slot in plan.by_role(Role.DOWN).values() for name in slot.tensors}
    parts = ([name for name in model if name in sent and (name in plan.personal) is apart] for apart in (False, True))
    shared, personal = (torch_of({"": model.like(dict.fromkeys(names))}, device)[""] for names in parts)
    filled = {name: _filled(slot) for name, slot in plan.by_role(Role.DOWN).items() if slot.first is not None}
    return {**torch_of(filled, device), **algorithm.init_apart(shared, personal)}


def next_state(
    algorithm: Algorithm, state: Trees, got: Cohort, *, last: bool = False, server: Server | None = None
) -> Trees:
    """The server's state after a round, torch.

    Args:
        algorithm: that of the round.
        state: before it; an algorithm may change its tensors in place, so it is not to be used again.
        got: what it brought in.
        last: whether it was the run's last that trains.
        server: the run's server optimiser.

    Raises:
        RunError: it is not finite.
    """
    with torch.no_grad():
        here = beside(state, got)
        got, memory = (got, {}) if server is None else server.stepped(here, got)
        after = algorithm.update(apart(here), got)
        after = {**(algorithm.conclude(after) if last else after), **memory}
    for slot, tree in after.items():
        for name, tensor in tree.items():
            if here.get(slot, Tree({})).get(name) is not tensor and not torch.isfinite(tensor).all():
                raise RunError(f"the new {slot}/{name} is not finite", where="update", remedy="Lower the step sizes")
    return after


def beside(state: Trees, got: Cohort) -> Trees:
    """The state on the device where the cohort's uploads were folded."""
    folded = next(
        (tensor for trees in (got.total, got.stack) for tree in trees.values() for tensor in tree.values()), None
    )
    if folded is None:
        return state
    return {slot: tree.map(lambda tensor: tensor.to(folded.device)) for slot, tree in state.items()}


def downloads(algorithm: Algorithm, state: Trees, device: str) -> Trees:
    """The DOWN slots of one device, as NumPy trees."""
    return each_downloads(algorithm, state, (device,))[device]


def each_downloads(algorithm: Algorithm, state: Trees, devices: Sequence[str]) -> dict[str, Trees]:
    """The DOWN slots of each device, as NumPy trees."""
    with torch.no_grad():
        return {device: numpy_of(trees) for device, trees in algorithm.send_each(state, devices).items()}


def addressed(algorithm: Algorithm) -> bool:
    """Whether each device gets a download of its own."""
    return any(slot.addressed for slot in algorithm.declared().values())


def _filled(slot: SlotPlan) -> Tree:
    fill = float(slot.first or 0)
    return Tree({name: np.full(spec.shape, fill, np.float32) for name, spec in slot.tensors.items()})


def torch_of(trees: Trees, device: str = "cpu") -> Trees:
    """NumPy trees as torch trees on a device; arrays that are read-only are copied."""

    def placed(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(np.require(array, requirements="W")).to(device)

    return {name: tree.map(placed) for name, tree in trees.items()}


def numpy_of(trees: Trees) -> Trees:
    """Torch trees as NumPy trees."""
    return {name: tree.map(lambda tensor: tensor.detach().cpu().numpy()) for name, tree in trees.items()}
