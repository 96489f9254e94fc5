"""Carries out a plan: moves named tensors between a device's slots and the graphs' ports, and knows no algorithm.

A round::

    memory = DOWN, KEEP, hyperparameters, "examples", "planned", "epoch", "steps" = 0
    begin                               where the plan has it
    for each minibatch:
        put the minibatch, NOISE and the "steps" done so far
        prepare                         where the plan has it
        inner, inner_steps times
        step
    finish
    result = UP slots, KEEP slots, TELL slots

What a graph gives overwrites what was there; what it does not give stays.

Between two minibatches a training can be written down (:class:`Halfway`) and goes on from there with the same bits:
its minibatches and noise follow from the seed and the step's number, and what ``begin`` gave is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from device_agent import memory as memories
from device_agent.data import Examples, minibatches
from device_agent.memory import Memory
from device_agent.runners import Array, Call, Runner, repeat
from device_agent.wiring import check, lasting, wire
from edgepfl.errors import EdgepflError, GraphFailed
from edgepfl.plan import Entry, Plan, Role
from edgepfl.tree import Tree, Trees

_TELLING = (Entry.STEP, Entry.INNER, Entry.PREPARE)
"""Which graph's metrics count: the first of these that has any.  Of the inner steps it is the last on a minibatch."""


class Stopped(EdgepflError):
    """Raised by ``on_step`` to end a training at the boundary of a step; nothing of it is kept."""


@dataclass(frozen=True)
class Start:
    """What a device has when a round begins.

    Attributes:
        down: the DOWN slots.
        keep: the settled KEEP slots; None before the device's first accepted round.
        hyper: runtime hyperparameters that the task sets; the others have the plan's values.
        seed: of this device in this round (derived from the task's seed and the device's name).
        round: for the messages of errors only.
    """

    down: Trees
    keep: Trees | None
    hyper: Mapping[str, float]
    seed: int
    round: int = 0


@dataclass(frozen=True)
class RoundResult:
    """What a round's training gave.

    Attributes:
        upload: the UP slots.
        keep: the KEEP slots.
        steps: minibatch steps taken.
        metrics: the mean over the minibatches of each metric of the step graph ("loss"), or of the inner one where a
            step has none, and the TELL slots; empty without steps.
    """

    upload: Trees
    keep: Trees
    steps: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Halfway:
    """A training between two steps.

    Attributes:
        steps: minibatch steps done.
        tensors: what of the memory later steps need, see :func:`device_agent.wiring.lasting`; valid only until the
            next step.
        sums: of each metric over the steps done.
    """

    steps: int
    tensors: Memory
    sums: Mapping[str, float]


class Interpreter:
    """Carries out a plan.  Holds nothing between calls, so one serves every thread.

    Args:
        plan: the plan.
        model: the bundle's initial parameters.
        runner: executes the graphs.

    Raises:
        PlanError: the plan's graphs and slots contradict each other.
    """

    def __init__(self, plan: Plan, model: Tree, runner: Runner) -> None:
        check(plan)
        self.plan = plan
        self._model = model
        self._runner = runner
        self._wiring = {entry: wire(graph) for entry, graph in plan.graphs.items()}
        self.lasting = lasting(plan)

    def train(
        self,
        start: Start,
        examples: Examples,
        steps: int,
        on_step: Callable[[int], None] | None = None,
        enough: Callable[[], bool] = lambda: False,
        *,
        since: Halfway | None = None,
        between: Callable[[Callable[[], Halfway]], None] | None = None,
    ) -> RoundResult:
        """One round: begin, ``steps`` minibatches, finish.

        Args:
            start: what the device has.
            examples: its data, already fit to the plan.
            steps: minibatch steps to take.
            on_step: called after each minibatch with the number done; may raise :class:`Stopped`.
            enough: asked after each minibatch whether to finish with those done: a slow device's part counts.
            since: go on from there; of a training with the same start, examples, steps and graphs.
            between: called after each minibatch with a function that gives where the training is; before ``on_step``,
                and may raise :class:`Stopped`, too.

        Raises:
            PlanError: the task sets a hyperparameter that the plan does not have, or slots of other tensors.
            GraphFailed: a graph failed, or gave a number that is not finite.
            Stopped: ``on_step`` or ``between`` raised it.
        """
        memory = self.open(start, examples, steps)
        memory |= since.tensors if since is not None else {}
        sums = dict(since.sums) if since is not None else {}
        done = first = since.steps if since is not None else 0
        minibatch = self._minibatch(memory, sums, start.round)

        def halfway() -> Halfway:
            return Halfway(done, {place: memory[place] for place in self.lasting}, dict(sums))

        for done in self.loop(memory, examples, steps, start.seed, first):
            minibatch()
            if between is not None:
                between(halfway)
            if on_step is not None:
                on_step(done)
            if enough():
                break
        memory |= memories.scalar("steps", done)
        self.call(Entry.FINISH, memory)
        return RoundResult(
            upload=memories.collect(self.plan.by_role(Role.UP), memory, start.round),
            keep=memories.collect(self.plan.by_role(Role.KEEP), memory, start.round),
            steps=done,
            metrics=self._told(memory, sums, done, start.round) if done else {},
        )

    def _minibatch(self, memory: Memory, sums: dict[str, float], round_: int) -> Callable[[], None]:
        """What is computed for each minibatch, as a function."""
        step, inner = self.repeat(Entry.STEP, memory), self.repeat(Entry.INNER, memory)
        prepare = self.repeat(Entry.PREPARE, memory) if self.has(Entry.PREPARE) else None
        telling = [entry for entry in _TELLING if self.has(entry) and self._wiring[entry].metrics][:1]

        def minibatch() -> None:
            if prepare is not None:
                prepare()
            for _ in range(self.plan.inner_steps):
                inner()
            step()
            for entry in telling:
                self.add_metrics(entry, memory, sums, round_)

        return minibatch

    def _told(self, memory: Memory, sums: Mapping[str, float], steps: int, round_: int) -> dict[str, float]:
        told = memories.collect(self.plan.by_role(Role.TELL), memory, round_)
        means = {name: total / steps for name, total in sums.items()}
        return means | {name: float(tree.value) for name, tree in told.items()}

    def open(self, start: Start, examples: Examples, steps: int = 0) -> Memory:
        """The memory of a new round of so many steps, or of an evaluation, after ``begin``.

        Raises:
            PlanError, GraphFailed: as :meth:`train`.
        """
        keep = self.plan.by_role(Role.KEEP)
        memory = memories.hyper(self.plan, start.hyper)
        memory |= memories.load(self.plan.by_role(Role.DOWN), start.down, "download")
        if start.keep is None:
            memory |= memories.first(keep, self._model, memory)
        else:
            memory |= memories.load(keep, start.keep, "KEEP slots in the store")
        epoch = -(-examples.count // self.plan.batch.size)
        known = {"examples": examples.count, "planned": steps, "epoch": epoch, "steps": 0}
        for name, value in known.items():
            memory |= memories.scalar(name, value)
        if self.has(Entry.BEGIN):
            self.call(Entry.BEGIN, memory)
        return memory

    def loop(self, memory: Memory, examples: Examples, steps: int, seed: int, first: int = 0) -> Iterator[int]:
        """Put one minibatch after the other into ``memory`` and give its number, from 1; "steps" follows afterwards.

        ``first`` of them are done already.
        """
        noise = self.plan.by_role(Role.NOISE)
        memory |= (steps_done := memories.scalar("steps", first))
        (count,) = steps_done.values()
        for done, batch in enumerate(minibatches(examples, self.plan.batch.size, steps, seed, first), first):
            memories.put(batch, memory)
            if noise:
                memory |= memories.draw(noise, seed, done)
            yield done + 1
            count[...] = done + 1

    def has(self, entry: Entry) -> bool:
        """Whether the plan has this graph."""
        return entry in self._wiring

    def call(self, entry: Entry, memory: Memory) -> None:
        """Run one graph on ``memory``.

        Raises:
            GraphFailed: it failed, or reads what nothing has set.
        """
        graph, wiring = self.plan.graphs[entry], self._wiring[entry]
        feeds = dict(zip((port.name for port in graph.inputs), self._read(entry, memory), strict=True))
        results = self._runner.run(entry, feeds)
        memory |= {place: results[port.name] for port, place in zip(graph.outputs, wiring.outputs, strict=True)}

    def repeat(self, entry: Entry, memory: Memory) -> Callable[[], None]:
        """One graph as a function that runs it on ``memory`` once more, for one thread.

        What it wrote into ``memory`` stays good for one further call, or for ever after the last.

        Raises:
            GraphFailed: as :meth:`call`; also what is given.
        """
        run: Call | None = None

        def again() -> None:
            nonlocal run
            run = run or repeat(self._runner, entry, self.plan.graphs[entry])
            memory.update(zip(self._wiring[entry].outputs, run(self._read(entry, memory)), strict=True))

        return again

    def _read(self, entry: Entry, memory: Memory) -> list[Array]:
        try:
            return [memory[place] for place in self._wiring[entry].inputs]
        except KeyError as error:
            kind, group, tensor = error.args[0]
            what = f"it reads tensor {tensor!r} of {kind} {group!r}, which nothing has set"
            raise GraphFailed(what, where=f"graph {entry}", remedy="Export the bundle again") from None

    def add_metrics(self, entry: Entry, memory: Memory, sums: dict[str, float], round_: int) -> None:
        """Add the metrics that a graph gave to ``sums``.

        Raises:
            GraphFailed: one is not finite.
        """
        for name, place in self._wiring[entry].metrics.items():
            value = float(memory[place])
            if not math.isfinite(value):
                raise memories.diverged(f"{name} is {value} in graph {entry}", round_)
            sums[name] = sums.get(name, 0.0) + value
