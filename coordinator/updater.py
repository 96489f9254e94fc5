"""The server's half of an algorithm, between checkpoints (NumPy) and mathematics (torch)."""

from __future__ import annotations

import numpy as np
import torch

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Plan, Role, resolve
from edgepfl.tree import Tree, Trees

Settings = dict[str, float | str]


def algorithm_of(plan: Plan, settings: Settings) -> Algorithm:
    """The algorithm of a plan, with a run's settings over the plan's defaults.

    Raises:
        ConfigError: a setting that the algorithm does not have, or that would need another export.
        RunError: the plan was made by another version of the algorithm.
    """
    kind = algorithms.load(plan.algorithm)
    models_own = plan.by_role(Role.NOISE).keys() - kind.slots.keys()  # its dropout's
    declared = {name: slot for name, slot in plan.slots.items() if name not in models_own}
    if resolve(kind.slots, plan.model, plan.personal, plan.hyper) != declared:
        raise RunError(
            "the bundle's slots are not this version's",
            where=plan.algorithm,
            remedy="Export the bundle again",
        )
    algorithm = algorithms.build(plan.algorithm, {**plan.fixed, **plan.server, **plan.hyper, **settings})
    for name, shaped in plan.fixed.items():
        if getattr(algorithm, name) != shaped:
            raise ConfigError(
                f"{name} shaped the graphs as {shaped}",
                where=plan.algorithm,
                remedy=f"Export again with --set {name}={settings[name]}",
            )
    return algorithm


def first_state(algorithm: Algorithm, plan: Plan, model: Tree) -> Trees:
    """The server's state before round 1, as NumPy trees."""
    sent = {name for slot in plan.by_role(Role.DOWN).values() for name in slot.tensors}
    return _numpy(algorithm.init(_torch(model.like({name: None for name in model if name in sent}))))


def next_state(algorithm: Algorithm, state: Trees, got: Cohort) -> Trees:
    """The server's state after a round, as NumPy trees.

    Raises:
        RunError: it is not finite.
    """
    with torch.no_grad():
        after = _numpy(algorithm.update(beside(state, got), got))
    for slot, tree in after.items():
        for name, tensor in tree.items():
            if not np.isfinite(tensor).all():
                raise RunError(f"the new {slot}/{name} is not finite", where="update", remedy="Lower the step sizes")
    return after


def beside(state: Trees, got: Cohort) -> Trees:
    """The state as torch trees on the device where the cohort's uploads were folded."""
    folded = next(
        (tensor for trees in (got.total, got.stack) for tree in trees.values() for tensor in tree.values()), None
    )
    return {
        slot: _torch(tree).map(lambda tensor: tensor if folded is None else tensor.to(folded.device))
        for slot, tree in state.items()
    }


def downloads(algorithm: Algorithm, state: Trees, device: str) -> Trees:
    """The DOWN slots of one device, as NumPy trees."""
    return algorithm.send(state, device)


def _torch(tree: Tree) -> Tree:
    return tree.map(torch.from_numpy)


def _numpy(trees: Trees) -> Trees:
    return {name: tree.map(lambda tensor: tensor.detach().cpu().numpy()) for name, tree in trees.items()}
