"""Doing a task: from bytes to bytes, off the network loop.

A workshop is shared by all agents of a process, so that a bundle's graphs are loaded once however many agents run them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, RoundResult, Start, Stopped
from device_agent.runners import Runner
from edgepfl import codec
from edgepfl.bundle import Bundle, unpack
from edgepfl.errors import BundleError
from edgepfl.plan import MODEL, Plan, Role
from edgepfl.seeds import derive
from edgepfl.tree import Trees
from edgepfl.wire import Task


@dataclass(frozen=True)
class Materials:
    """What a task needs besides itself.

    Attributes:
        device: whose task it is.
        examples: its data.
        bundle: reads the bundle's bytes.
        download: reads the DOWN slots' bytes.
        keep: the settled KEEP slots' bytes, None before the first accepted round.
    """

    device: str
    examples: Examples
    bundle: Callable[[], bytes]
    download: Callable[[], bytes]
    keep: bytes | None


@dataclass(eq=False)
class Job:
    """A task in a thread, or on its way there."""

    task: Task
    stop: threading.Event = field(default_factory=threading.Event)
    steps: int = 0

    def on_step(self, done: int) -> None:
        """Note how far it is, in its thread.

        Raises:
            Stopped: it is not wanted any more.
        """
        self.steps = done
        if self.stop.is_set():
            raise Stopped("the task is over", where=f"round {self.task.round}")


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


class Workshop:
    """Opens bundles and does tasks.  Safe to use from several threads.

    Args:
        runner: makes the runner of a bundle.
        runtime: the bundle's graphs it needs.
        most: bundles to hold open.
        tidy: called after each task, in its thread.
    """

    def __init__(
        self,
        runner: Callable[[Bundle], Runner],
        *,
        runtime: str = "onnx",
        most: int = 4,
        tidy: Callable[[], None] | None = None,
    ) -> None:
        self._runner = runner
        self._tidy = tidy
        self.runtime = runtime
        self._most = most
        self._open: dict[str, Interpreter] = {}
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
        started = time.perf_counter()
        on_step(0)  # it may have waited long for its thread
        interpreter = self._interpreter(task.bundle.sha256, materials.bundle)
        examples = materials.examples.fit(interpreter.plan)
        start = _start(task, materials, interpreter.plan)
        loaded = time.perf_counter()
        metrics: dict[str, float] = {}
        serving = None
        if task.evaluate:
            found = evaluate(interpreter, start, examples, task.tune_steps, lambda: on_step(0))
            metrics |= found.metrics
            serving = codec.encode({MODEL: found.personal}) if task.final else None
        evaluated = time.perf_counter()
        result = interpreter.train(start, examples, task.steps, on_step, lambda: _enough(task, evaluated))
        seconds = {
            "load": loaded - started,
            "evaluate": evaluated - loaded,
            "train": time.perf_counter() - evaluated,
        }
        keep, upload = _outcome(task, materials, result)
        if self._tidy is not None:
            self._tidy()
        return Product(
            keep=keep,
            kept=hashlib.sha256(keep).hexdigest(),
            upload=upload,
            serving=serving,
            steps=result.steps,
            metrics={**metrics, **result.metrics},
            seconds=seconds,
        )

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
                self._open[sha256] = Interpreter(bundle.plan, bundle.model, self._runner(bundle))
            return self._open[sha256]


def _enough(task: Task, since: float) -> bool:
    """Whether a training has taken as long as its task has patience."""
    return task.patience > 0 and time.perf_counter() - since >= task.patience


def _start(task: Task, materials: Materials, plan: Plan) -> Start:
    down = codec.decode(materials.download(), _tensors(plan, Role.DOWN), where="download")
    keep: Trees | None = None
    if materials.keep is not None:
        keep = codec.decode(materials.keep, _tensors(plan, Role.KEEP), where="kept slots")
    return Start(down, keep, task.hyper, derive(task.seed, materials.device), task.round)


def _tensors(plan: Plan, role: Role) -> codec.Expected:
    return {name: slot.tensors for name, slot in plan.by_role(role).items()}


def _outcome(task: Task, materials: Materials, result: RoundResult) -> tuple[bytes, bytes | None]:
    """The bytes of the new KEEP slots and of the upload; a task that trains nothing changes nothing, to the bit."""
    if task.steps == 0:
        return materials.keep if materials.keep is not None else codec.encode(result.keep), None
    return codec.encode(result.keep), codec.encode(result.upload)
