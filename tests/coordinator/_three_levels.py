"""Rounds of three levels in one program: what hubs and their centre over the bus must come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from coordinator import updater
from coordinator.hub.levels import Hub, one_model
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.plan import Weighting
from edgepfl.tree import Tree, Trees

Play: TypeAlias = Callable[[Trees, int], Cohort]
"""One round of a hub's own devices: from the server's state and the round's number to what it brought in."""

_KEPT = "u"  # the name of what a hub in the nested form keeps


@dataclass(frozen=True)
class HubReport:
    """What a round of a hub gives.

    Attributes:
        delta: the change of the centre's model that it asks for.
        examples: of each device that took part in any of its rounds.
        steps: minibatch steps that a device took in all of them, at most.
        kept: what the hub keeps once the centre has accepted this.
    """

    delta: Tree
    examples: Mapping[str, int]
    steps: int
    kept: Trees

    def weight(self, weighting: Weighting) -> float:
        """How much it counts: the devices under it, or their examples."""
        return float(len(self.examples) if weighting is Weighting.UNIFORM else sum(self.examples.values()))


def train(hub: Hub, w: Tree, kept: Trees, play: Play, number: int = 1) -> HubReport:
    """One round of the centre, ``rounds`` of the hub's own.

    Args:
        hub: that has it.
        w: the centre's model.
        kept: what the hub kept from its last accepted round, empty before the first.
        play: has its devices train.
        number: of the centre's round, from 1.
    """
    down, _ = hub.slots
    u = w if hub.nested is None else kept.get(_KEPT, w)
    examples: dict[str, int] = {}
    steps = 0
    for own in range((number - 1) * hub.rounds, number * hub.rounds):
        got = play({down: u}, own + 1)
        u = hub.moved(u, w, got)
        examples |= dict(zip(got.devices, got.examples, strict=True))
        steps += max(got.steps)
    return HubReport(hub.change(u, w), examples, steps, {} if hub.nested is None else {_KEPT: u})


def combine(
    algorithm: Algorithm,
    state: Trees,
    reports: Mapping[str, HubReport],
    *,
    number: int = 1,
) -> Trees:
    """The centre's state after a round: its hubs' reports are the uploads.

    Args:
        algorithm: the centre's, whose weighting says whether devices or examples count.
        state: before the round, as NumPy trees.
        reports: by hub.
        number: of the round, from 1.
    """
    down, up = one_model(algorithm)
    hubs = sorted(reports)
    weights = [reports[hub].weight(algorithm.weighting) for hub in hubs]
    total = _mean([reports[hub].delta for hub in hubs], weights).zip(
        lambda array, like: array.astype(like.dtype), state[down]
    )
    got = Cohort(
        devices=tuple(hubs),
        examples=tuple(sum(reports[hub].examples.values()) for hub in hubs),
        steps=tuple(reports[hub].steps for hub in hubs),
        total={up: total.map(torch.from_numpy)},
        stack={},
        number=number,
        fleet=tuple(hubs),
    )
    return updater.numpy_of(updater.next_state(algorithm, updater.torch_of(state), got))


def _mean(trees: list[Tree], weights: list[float]) -> Tree:
    """The weighted mean in float64, summed in this order."""
    whole = sum(weights)
    parts = [
        (weight / whole) * tree.map(lambda array: array.astype(np.float64))
        for tree, weight in zip(trees, weights, strict=True)
    ]
    return sum(parts[1:], parts[0])
