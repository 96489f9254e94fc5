"""A federation in one process: what the coordinator and the agents do with an algorithm, and nothing else.

No graph, no wire, no storage: only the algorithm's functions in the order that ``edgepfl.algorithms._base`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from _problems import Batch, Draw, Problem, Vector, flat, tree_of

from edgepfl.algorithms import Algorithm, Cohort, hyperparameters
from edgepfl.plan import MODEL, Role, Shape, SlotPlan, TensorSpec, Weighting, resolve
from edgepfl.tree import Tree, Trees

Round: TypeAlias = Mapping[str, Sequence[Draw]]
"""What each device of a round's cohort draws."""


@dataclass
class Federation:
    """The coordinator's state and every device's KEEP slots, moved round by round."""

    algorithm: Algorithm
    problem: Problem
    personal: tuple[str, ...] = ()
    model: Tree = field(init=False)
    slots: dict[str, SlotPlan] = field(init=False)
    state: Trees = field(init=False)
    kept: dict[str, dict[str, Tree]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = tree_of(self.problem.start(), self.problem.shapes)
        specs = {name: TensorSpec(shape) for name, shape in self.problem.shapes.items()}
        roles = hyperparameters(type(self.algorithm))
        runtime = {name for name, role in roles.items() if role == "runtime"}
        self.slots = resolve(self.algorithm.slots, specs, self.personal, runtime)
        whole = any(slot.shape is Shape.PARAMS for slot in self.algorithm.slots.values() if slot.role is Role.DOWN)
        shared = specs if whole else {name: spec for name, spec in specs.items() if name not in self.personal}
        self.state = self.algorithm.init(self.model.like(shared))

    def round(self, draws: Round) -> None:
        """Train the cohort and fold its uploads, in the order of the devices' names."""
        batches = {device: [self.problem.batch(device, draw) for draw in draws[device]] for device in draws}
        self.round_of(batches)

    def round_of(self, batches: Mapping[str, Sequence[Batch]]) -> None:
        """Likewise, with the minibatches themselves."""
        uploads = {device: self.train(device, batches[device]) for device in sorted(batches)}
        examples = [self.problem.examples[device] for device in uploads]
        steps = [len(batches[device]) for device in uploads]
        total = mean(list(uploads.values()), self.weights(examples))
        self.state = self.algorithm.update(
            self.state, Cohort(tuple(uploads), tuple(examples), tuple(steps), total, stack={})
        )

    def weights(self, examples: Sequence[int]) -> list[float]:
        """The cohort's weights, which sum to 1."""
        if self.algorithm.weighting is Weighting.UNIFORM:
            return [1 / len(examples)] * len(examples)
        return [count / sum(examples) for count in examples]

    def opening(self, device: str) -> Trees:
        """DOWN and KEEP slots at the start of a round."""
        sent = dict(self.algorithm.send(self.state, device))
        kept = self.kept.get(device) or {
            name: self._first(slot, sent) for name, slot in self.slots.items() if slot.role is Role.KEEP
        }
        return sent | kept

    def train(self, device: str, batches: Sequence[Batch]) -> Trees:
        """One device's round: moves its KEEP slots and gives its UP slots."""
        s = dict(self.opening(device))
        s |= self.algorithm.begin(s)
        for b in batches:
            for _ in range(self.algorithm.inner_steps):
                s |= self.algorithm.inner(s, b)
            s |= self.algorithm.step(s, b)
        s |= self.algorithm.finish(s)
        self.kept[device] = {name: s[name] for name, slot in self.slots.items() if slot.role is Role.KEEP}
        return {name: s[name] for name, slot in self.slots.items() if slot.role is Role.UP}

    def predictor(self, device: str, tuning: Sequence[Batch] = ()) -> Vector:
        """The parameters that a device predicts with, after ``tune`` on some minibatches."""
        s = dict(self.opening(device))
        s |= self.algorithm.begin(s)
        for b in tuning:
            s |= self.algorithm.tune(s, b)
        return flat(self.algorithm.predictor(s))

    def _first(self, slot: SlotPlan, sent: Trees) -> Tree:
        match slot.first:
            case str(name) if name == MODEL:
                return self.model.like(slot.tensors)
            case str(name) if name in sent:
                return sent[name].like(slot.tensors)
            case str(name):
                fill = float(getattr(self.algorithm, name))
            case number:
                fill = float(number or 0)
        return Tree({k: torch.full(spec.shape, fill, dtype=torch.float64) for k, spec in slot.tensors.items()})


def mean(uploads: Sequence[Trees], weights: Sequence[float]) -> Trees:
    """The weighted mean of each UP slot."""
    total: dict[str, Tree] = {name: weights[0] * tree for name, tree in uploads[0].items()}
    for weight, upload in zip(weights[1:], uploads[1:], strict=True):
        total = {name: tree + weight * upload[name] for name, tree in total.items()}
    return total


def schedule(problem: Problem, *, rounds: int, steps: int = 3, share: float = 0.5, seed: int = 1) -> list[Round]:
    """Cohorts of a share of the devices and minibatches of four rows, some of them padding."""
    rng = np.random.default_rng(seed)
    devices = sorted(problem.examples)
    plan: list[Round] = []
    for _ in range(rounds):
        cohort = sorted(rng.choice(devices, int(share * len(devices)), replace=False).tolist())
        plan.append({device: [_draw(problem, device, rng) for _ in range(steps)] for device in cohort})
    return plan


def normalised(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as weights that sum to 1."""
    return {device: count / sum(counts.values()) for device, count in counts.items()}


def _draw(problem: Problem, device: str, rng: np.random.Generator) -> Draw:
    padding = int(rng.integers(0, 3))
    rows = rng.choice(problem.examples[device], 4 - padding, replace=False)
    return problem.draw(device, rows.tolist(), padding)
