"""Doing a task: from bytes to bytes, off the network loop.

A workshop is shared by all agents of a process, so that a bundle's graphs are loaded once however many agents run them.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from device_agent import sending
from device_agent.checkpoint import Checkpoint, Saver, key_of
from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Halfway, Interpreter, RoundResult, Start, Stopped
from device_agent.privacy import bounded, discreet, weight_of
from device_agent.runners import Runner
from device_agent.runners.lending import Lending
from edgepfl import codec
from edgepfl.bundle import Bundle, unpack
from edgepfl.coding import Coding
from edgepfl.errors import BundleError
from edgepfl.plan import MODEL, Plan, Role
from edgepfl.secagg.vector import Layout, Vectors
from edgepfl.seeds import derive
from edgepfl.tree import Trees
from edgepfl.wire import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Materials:
    """What a task needs besides itself.

    Attributes:
        device: whose task it is.
        examples: its data.
        bundle: reads the bundle's bytes.
        download: reads the DOWN slots' bytes.
        keep: the settled KEEP slots' bytes, None before the first accepted round.
        saver: keeps checkpoints of the training, if anything does.
    """

    device: str
    examples: Examples
    bundle: Callable[[], bytes]
    download: Callable[[], bytes]
    keep: bytes | None
    saver: Saver | None = None


@dataclass(eq=False)
class Job:
    """A task in a thread, or on its way there.

    Attributes:
        task: what to do.
        stop: set when it is not wanted any more: it ends at the next step's boundary, and nothing of it is kept.
        rest: set when it must pause: it ends at the next step's boundary with a checkpoint, from which the same task
            goes on another time.
        steps: how many are done.
        resting: whether it has ended so, and waits for that.
    """

    task: Task
    stop: threading.Event = field(default_factory=threading.Event)
    rest: threading.Event = field(default_factory=threading.Event)
    steps: int = 0
    resting: bool = False

    def on_step(self, done: int) -> None:
        """Note how far it is, in its thread.  Zero steps: it loads or evaluates, of which no checkpoint is taken.

        Raises:
            Stopped: it is not wanted any more, or must pause.
        """
        self.steps = max(self.steps, done)
        if self.stop.is_set():
            raise Stopped("the task is over", where=f"round {self.task.round}")
        if self.rest.is_set() and done == 0:
            raise Stopped("the task pauses", where=f"round {self.task.round}")


@dataclass(frozen=True)
class Product:
    """What a task gives.

    Attributes:
        keep: the new KEEP slots' bytes.
        kept: their digest, hexadecimal.
        upload: the UP slots' bytes, None where nothing was trained.
        serving: the device's own model's bytes, where the task is the run's last.
        steps: minibatch steps taken.
        metrics: of training and evaluation.
        seconds: by phase.
    """

    keep: bytes
    kept: str
    upload: bytes | None
    serving: bytes | None
    steps: int
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Before:
    """What a task has when its training begins or goes on; as in :class:`~device_agent.checkpoint.Checkpoint`."""

    halfway: Halfway | None = None
    trained: float = 0.0
    evaluated: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    serving: bytes | None = None


class Workshop:
    """Opens bundles and does tasks.  Safe to use from several threads.

    Args:
        runner: makes the runner of a bundle.
        runtime: the bundle's graphs it needs.
        version: of what runs them, of which no checkpoint is used by another one; "": the runtime's name stands for it.
        most: bundles to hold open.
        tidy: called after each task, in its thread.
        clock: seconds that never go back, by which work is timed.
        shared: whether many agents take turns here: then what one task has bound and decoded stays for the next ones.
    """

    def __init__(
        self,
        runner: Callable[[Bundle], Runner],
        *,
        shared: bool = False,
        runtime: str = "onnx",
        version: str = "",
        most: int = 4,
        tidy: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._tidy = tidy
        self._clock = clock
        self.runtime = runtime
        self._version = version or runtime
        self._most = most
        self._shared = shared
        self._open: dict[str, tuple[Interpreter, Runner]] = {}
        self._downloaded: tuple[str, str, Trees] = ("", "", {})  # of which bundle, its digest, and what is in it
        self._lock = threading.Lock()

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        """Do a task.

        Args:
            task: what to do.
            materials: what it needs.
            on_step: called with the number of training steps done, after each of them and before and after every
                other piece of work; may raise :class:`~device_agent.interpreter.Stopped`.

        Raises:
            EdgepflError: whatever stands in the way, with its reason.
            Stopped: ``on_step`` raised it.
        """
        try:
            return self._perform(task, materials, on_step)
        finally:
            self._give_back(task.bundle.sha256, whole=sys.exception() is None)

    def _perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        started = self._clock()
        on_step(0)  # it may have waited long for its thread
        interpreter = self._interpreter(task.bundle.sha256, materials.bundle)
        examples = materials.examples.fit(interpreter.plan)
        coding = Coding(task.codec, interpreter.plan)
        start, residual = _start(
            task, materials, interpreter.plan, coding, self._download(task, materials, interpreter.plan)
        )
        loaded = self._clock()
        before = self._before(task, materials, interpreter, start, examples, on_step)
        began = self._clock() - before.trained
        result = interpreter.train(
            start,
            examples,
            task.steps,
            on_step,
            lambda: _enough(task, self._clock() - began),
            since=before.halfway,
            between=_between(materials.saver, before, lambda: self._clock() - began),
        )
        seconds = {
            "load": loaded - started,
            "evaluate": before.evaluated,
            "train": self._clock() - began,
        }
        keep, upload = _outcome(task, materials, result, coding, residual)
        if self._tidy is not None:
            self._tidy()
        made = Product(
            keep=keep,
            kept=hashlib.sha256(keep).hexdigest(),
            upload=upload,
            serving=before.serving,
            steps=result.steps,
            metrics={**before.metrics, **result.metrics},
            seconds=seconds,
        )
        return discreet(made, task)

    def _before(
        self,
        task: Task,
        materials: Materials,
        interpreter: Interpreter,
        start: Start,
        examples: Examples,
        on_step: Callable[[int], None],
    ) -> Before:
        """What comes before a task's training: its checkpoint, or else the evaluation."""
        saver = materials.saver
        if saver is not None:
            key = partial(key_of, task, materials.device, self._version, materials.keep, examples)
            found = saver.load(key, interpreter.lasting)
            if found is not None and found.halfway.steps <= task.steps:
                log.info(
                    "%s: round %d: going on at step %d of %d",
                    materials.device,
                    task.round,
                    found.halfway.steps,
                    task.steps,
                )
                on_step(found.halfway.steps)
                return Before(found.halfway, found.trained, found.evaluated, found.metrics, found.serving)
        if not task.evaluate:
            return Before()
        began = self._clock()
        evaluation = evaluate(interpreter, start, examples, task.tune_steps, lambda: on_step(0))
        serving = codec.encode({MODEL: evaluation.personal}) if task.final else None
        return Before(None, 0.0, self._clock() - began, evaluation.metrics, serving)

    def _interpreter(self, sha256: str, read: Callable[[], bytes]) -> Interpreter:
        with self._lock:
            if sha256 not in self._open:
                bundle = unpack(read(), where=f"bundle {sha256[:16]}", golden=False)
                if self.runtime not in bundle.graphs:
                    raise BundleError(
                        f"it has no {self.runtime} graphs",
                        where=f"bundle {sha256[:16]}",
                        remedy=f"Export it with --runtimes {self.runtime}",
                    )
                while len(self._open) >= self._most:
                    self._open.pop(next(iter(self._open)))
                runner = self._runner(bundle)
                runner = Lending(runner, bundle.plan.graphs) if self._shared else runner
                self._open[sha256] = Interpreter(bundle.plan, bundle.model, runner), runner
            return self._open[sha256][0]

    def _give_back(self, sha256: str, *, whole: bool) -> None:
        """Let the next task have what this thread's bound; nothing of the result lies in that any more."""
        _, runner = self._open.get(sha256, (None, None))
        if isinstance(runner, Lending):
            (runner.give_back if whole else runner.drop)()

    def _download(self, task: Task, materials: Materials, plan: Plan) -> Trees:
        """The DOWN slots; nobody changes their arrays, so those of a whole cohort can be the same ones."""
        key = task.bundle.sha256, task.download.sha256
        *known, trees = self._downloaded
        if self._shared and tuple(known) == key:
            return trees
        expected = {name: slot.tensors for name, slot in plan.by_role(Role.DOWN).items()}
        trees = codec.decode(materials.download(), expected, where="download")
        if self._shared:
            self._downloaded = (*key, trees)
        return trees


def _enough(task: Task, trained: float) -> bool:
    """Whether a training has taken as long as its task has patience."""
    return task.patience > 0 and trained >= task.patience


def _between(
    saver: Saver | None, before: Before, trained: Callable[[], float]
) -> Callable[[Callable[[], Halfway]], None] | None:
    """What is done between two steps: now and then a checkpoint."""
    if saver is None:
        return None

    def between(halfway: Callable[[], Halfway]) -> None:
        if saver.due:
            saver.save(Checkpoint(halfway(), trained(), before.evaluated, before.metrics, before.serving))
        if saver.resting:
            raise Stopped("the task pauses", remedy="It goes on from its checkpoint when it comes again")

    return between


def _start(task: Task, materials: Materials, plan: Plan, coding: Coding, down: Trees) -> tuple[Start, Trees]:
    """What the round begins with, and what of earlier uploads is still to be sent."""
    kept = sending.taken(materials.keep, coding, plan)
    start = Start(down, kept.slots, task.hyper, derive(task.seed, materials.device), task.round)
    return start, kept.residual


def _outcome(
    task: Task, materials: Materials, result: RoundResult, coding: Coding, residual: Trees
) -> tuple[bytes, bytes | None]:
    """The bytes of the new KEEP slots and of the upload; a task that trains nothing changes nothing, to the bit."""
    if task.steps == 0:
        return materials.keep if materials.keep is not None else codec.encode({**result.keep, **residual}), None
    encoder, seed = _encoder(task, materials, coding), derive(task.seed, materials.device)
    made = sending.sent(result, encoder, task.amends, residual, seed)
    return codec.encode(made.keep), made.upload


def _encoder(task: Task, materials: Materials, coding: Coding) -> sending.Encoder:
    """What makes bytes of the upload."""
    if task.secagg is None:
        return bounded(coding, task)
    weight = weight_of(task, materials.examples.count)
    return bounded(Vectors(Layout.of(task.secagg, coding.plan), weight), task)
