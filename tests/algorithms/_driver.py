"""A federation in one process: what the coordinator and the agents do with an algorithm, and nothing else.

No graph, no wire, no storage: only the algorithm's functions in the order that ``edgepfl.algorithms._base`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from _problems import Batch, Draw, Problem, Quadratic, Vector, flat, tree_of

from edgepfl.algorithms import Algorithm, Cohort, hyperparameters
from edgepfl.plan import MODEL, Reduce, Role, SlotPlan, TensorSpec, Weighting, resolve
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees

Round: TypeAlias = Mapping[str, Sequence[Draw]]
"""What each device of a round's cohort draws."""


@dataclass
class Federation:
    """The coordinator's state and every device's KEEP slots, moved round by round.

    Attributes:
        algorithm: with the run's hyperparameters.
        problem: the devices.
        personal: the tensors that stay on the device.
        dims: the dimensions that slots name, beside the algorithm's own.
        coins: of the server.
        told: the TELL slots of the last round, by device.
    """

    algorithm: Algorithm
    problem: Problem
    personal: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    coins: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    model: Tree = field(init=False)
    slots: dict[str, SlotPlan] = field(init=False)
    state: Trees = field(init=False)
    kept: dict[str, dict[str, Tree]] = field(default_factory=dict)
    told: dict[str, dict[str, float]] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        self.algorithm.check()
        self.model = tree_of(self.problem.start(), self.problem.shapes)
        specs = {name: TensorSpec(shape) for name, shape in self.problem.shapes.items()}
        roles = hyperparameters(type(self.algorithm))
        runtime = {name for name, role in roles.items() if role == "runtime"}
        fixed = {name: getattr(self.algorithm, name) for name, role in roles.items() if role == "fixed"}
        dims = {name: value for name, value in fixed.items() if isinstance(value, int)} | dict(self.dims)
        declared = self.algorithm.declared()
        self.slots = resolve(declared, specs, self.personal, runtime, dims)
        sent = [slot.tensors for slot in self.by_role(Role.DOWN).values()]
        wanted = [name for name in specs if any(name in tensors for tensors in sent)]
        shared, personal = (
            self.model.like(dict.fromkeys(name for name in wanted if (name in self.personal) is apart))
            for apart in (False, True)
        )
        filled = {
            name: _filled(slot, slot.first) for name, slot in self.by_role(Role.DOWN).items() if slot.first is not None
        }
        self.state = filled | dict(self.algorithm.init_apart(shared, personal))

    def by_role(self, role: Role) -> dict[str, SlotPlan]:
        """The slots of one role."""
        return {name: slot for name, slot in self.slots.items() if slot.role is role}

    def round(self, draws: Round) -> None:
        """Train the cohort and fold its uploads, in the order of the devices' names."""
        batches = {device: [self.problem.batch(device, draw) for draw in draws[device]] for device in draws}
        self.round_of(batches)

    def round_of(self, batches: Mapping[str, Sequence[Batch]]) -> None:
        """Likewise, with the minibatches themselves."""
        self.number += 1
        run = self.algorithm
        self.algorithm = tuned = replace(run, **self.algorithm.round_hyper(self.number, self.coins))  # type: ignore[arg-type]  # floats by name
        uploads = {device: self.train(device, batches[device]) for device in sorted(batches)}
        steps = [len(batches[device]) for device in uploads]
        examples = [self.problem.examples[device] for device in uploads]
        whole = {
            device: {**upload, **tuned.rebuild(upload, taken)}
            for (device, upload), taken in zip(uploads.items(), steps, strict=True)
        }
        reduce = {name: slot.reduce for name, slot in self.by_role(Role.UP).items()} | dict(tuned.rebuilt)
        total, stack = folded(list(whole.values()), reduce, self.weights(examples))
        got = Cohort(
            tuple(uploads),
            tuple(examples),
            tuple(steps),
            total,
            stack,
            self.number,
            tuple(sorted(self.problem.examples)),
        )
        self.state = tuned.update(self.state, got)
        self.algorithm = run

    def weights(self, examples: Sequence[int]) -> list[float]:
        """The cohort's weights, which sum to 1."""
        if self.algorithm.weighting is Weighting.UNIFORM:
            return [1 / len(examples)] * len(examples)
        return [count / sum(examples) for count in examples]

    def opening(self, device: str, steps: int = 0) -> Trees:
        """DOWN, KEEP and GIVEN slots at the start of a round of so many steps."""
        sent = dict(self.algorithm.send(self.state, device))
        kept = self.kept.get(device) or {
            name: self._first(slot, sent) for name, slot in self.by_role(Role.KEEP).items()
        }
        known = {"steps": 0, "examples": self.problem.examples[device], "planned": steps, "epoch": steps}
        return sent | kept | {name: _number(known[name]) for name in self.by_role(Role.GIVEN)}

    def train(self, device: str, batches: Sequence[Batch]) -> Trees:
        """One device's round: moves its KEEP slots and gives its UP slots."""
        s = dict(self.opening(device, len(batches)))
        s |= self.algorithm.begin(s)
        for done, b in enumerate(batches):
            s |= self._noise(device, done)
            s |= self.algorithm.prepare(s, b)
            for _ in range(self.algorithm.inner_steps):
                s |= self.algorithm.inner(s, b)
            s |= self.algorithm.step(s, b)
            if "steps" in self.slots:
                s["steps"] = _number(done + 1)
        s |= self.algorithm.finish(s)
        self.kept[device] = {name: s[name] for name in self.by_role(Role.KEEP)}
        self.told[device] = {name: float(s[name].value) for name in self.by_role(Role.TELL)}
        return {name: s[name] for name in self.by_role(Role.UP)}

    def lose(self, device: str, batches: Sequence[Batch]) -> Trees:
        """Train a device whose report is never accepted, so it drops its new KEEP slots, which are what this gives."""
        accepted = dict(self.kept)
        self.train(device, batches)
        dropped, self.kept = self.kept[device], accepted
        return dropped

    def predictor(self, device: str, tuning: Sequence[Batch] = ()) -> Vector:
        """The parameters that a device predicts with, after ``tune`` on some minibatches."""
        return flat(self.algorithm.predictor(self.prepared(device, tuning)))

    def other(self, device: str, model: str) -> Vector:
        """The parameters of another of its models."""
        return flat(self.algorithm.others(self.prepared(device))[model])

    def prepared(self, device: str, tuning: Sequence[Batch] = ()) -> dict[str, Tree]:
        """The slots at an evaluation."""
        s = dict(self.opening(device, len(tuning)))
        s |= self.algorithm.begin(s)
        for done, b in enumerate(tuning):
            s |= self._noise(device, done)
            s |= self.algorithm.tune(s, b)
        return s

    def noise(self, device: str, done: int, name: str) -> Vector:
        """The standard normals of a NOISE slot for one minibatch of this round."""
        (spec,) = self.slots[name].tensors.values()
        drawn: Vector = generator(self.number, device, done, name).standard_normal(spec.shape)
        return drawn

    def _noise(self, device: str, done: int) -> dict[str, Tree]:
        slots = self.by_role(Role.NOISE)
        return {name: Tree.scalar(torch.tensor(self.noise(device, done, name))) for name in slots}

    def _first(self, slot: SlotPlan, sent: Trees) -> Tree:
        match slot.first:
            case str(name) if name == MODEL:
                return self.model.like(slot.tensors)
            case str(name) if name in sent:
                return sent[name].like(slot.tensors)
            case str(name):
                return _filled(slot, getattr(self.algorithm, name))
            case number:
                return _filled(slot, number)


def folded(
    uploads: Sequence[Trees], reduce: Mapping[str, Reduce | None], weights: Sequence[float]
) -> tuple[Trees, Trees]:
    """The uploads' MEAN and SUM slots combined, and their STACK slots."""
    total = mean(
        [{name: upload[name] for name in reduce if reduce[name] is Reduce.MEAN} for upload in uploads], weights
    )
    ones = [1.0] * len(uploads)
    sums = mean([{name: upload[name] for name in reduce if reduce[name] is Reduce.SUM} for upload in uploads], ones)
    stacked = [name for name in reduce if reduce[name] is Reduce.STACK]
    stack = {
        name: Tree({tensor: torch.stack([upload[name][tensor] for upload in uploads]) for tensor in uploads[0][name]})
        for name in stacked
    }
    return {**total, **sums}, stack


def _filled(slot: SlotPlan, number: str | float | None) -> Tree:
    fill = float(number or 0)
    return Tree({name: torch.full(spec.shape, fill, dtype=torch.float64) for name, spec in slot.tensors.items()})


def _number(value: float) -> Tree:
    return Tree.scalar(torch.tensor(float(value), dtype=torch.float64))


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


def uneven(draws: Round) -> Round:
    """The round of a cohort whose first device stops after one step, its second after two, and so on."""
    return {device: draws[device][: 1 + place] for place, device in enumerate(sorted(draws))}


def settle(federation: Federation, problem: Quadratic, *, rounds: int, share: float = 1.0, steps: int = 2) -> None:
    """Many rounds of full batches by a share of the devices, each of a cohort one step more than the one before it."""
    for draws in schedule(problem, rounds=rounds, share=share):
        federation.round_of({k: [problem.whole(k)] * (steps + place) for place, k in enumerate(sorted(draws))})


def normalised(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as weights that sum to 1."""
    return {device: count / sum(counts.values()) for device, count in counts.items()}


def _draw(problem: Problem, device: str, rng: np.random.Generator) -> Draw:
    padding = int(rng.integers(0, 3))
    rows = rng.choice(problem.examples[device], 4 - padding, replace=False)
    return problem.draw(device, rows.tolist(), padding)
