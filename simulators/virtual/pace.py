"""The real workshop at a simulated pace: graphs run as they are, and each call takes what a cost model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from device_agent import runners
from device_agent.interpreter import Stopped
from device_agent.runners import Array, Call, Runner
from device_agent.work import Materials, Product, Workshop
from edgepfl.bundle import Bundle
from edgepfl.plan import Entry, Plan
from edgepfl.wire import Task
from simulators.clock import PowerCut, spend
from simulators.virtual.records import Cost

Say = Callable[[str, str, int, str], None]
"""Told of an event: who, what, round, detail."""

_FORWARD, _TRAINING = 2, 6
"""Operations for each parameter and row of a forward pass, and of one with its gradient: "compute is 6 N D", Kaplan et
al. 2020 (https://arxiv.org/abs/2001.08361), section 2.1."""
_PASSES = {Entry.STEP: _TRAINING, Entry.INNER: _TRAINING, Entry.PREPARE: _TRAINING, Entry.TUNE: _TRAINING}


def operations(plan: Plan, entry: Entry) -> int:
    """Floating-point operations of a call of a graph, from the model's size and the minibatch's alone.

    It is exact for dense layers and one gradient.  A convolution uses each parameter at many places: there give
    :attr:`Cost.step` as measured.
    """
    parameters = sum(_elements(spec.shape) for spec in plan.model.values())
    rows = plan.batch.size if entry in _PASSES or entry is Entry.EVALUATE else 1
    return parameters * rows * _PASSES.get(entry, _FORWARD)


def seconds_of(plan: Plan, cost: Cost) -> Mapping[Entry, float]:
    """Seconds of a call of each graph on a processor of factor 1."""
    found = {entry: cost.fixed + operations(plan, entry) / cost.speed for entry in plan.graphs}
    if cost.step is not None:
        found |= {entry: cost.step for entry in _PASSES if entry in found}
    return found


class PacedRunner:
    """A :class:`~device_agent.runners.Runner` whose calls take virtual time.

    Args:
        runner: executes the graphs.
        plan: of the bundle.
        cost: of its graphs.
    """

    def __init__(self, runner: Runner, plan: Plan, cost: Cost) -> None:
        self._runner = runner
        self._plan = plan
        self._seconds = seconds_of(plan, cost)

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See :meth:`device_agent.runners.Runner.run`."""
        results = self._runner.run(entry, feeds)
        spend(self._seconds[entry])
        return results

    def repeat(self, entry: Entry) -> Call:
        """See :meth:`device_agent.runners.Repeating.repeat`."""
        call = runners.repeat(self._runner, entry, self._plan.graphs[entry])

        def paced(inputs: Sequence[Array]) -> Sequence[Array]:
            results = call(inputs)
            spend(self._seconds[entry])
            return results

        return paced


class PacedWorkshop(Workshop):
    """A workshop for devices of one runtime, which tells of the beginning and the end of each task.

    Args:
        runner: makes the runner of a bundle.
        runtime: the bundle's graphs that it needs.
        cost: of work.
        clock: virtual seconds.
        say: told of each task.
        outcome: told in the end of each task what came of it, before its time has passed: device, round, words.
        steps: tell of each step, too.
    """

    def __init__(
        self,
        runner: Callable[[Bundle], Runner],
        *,
        runtime: str,
        cost: Cost,
        clock: Callable[[], float],
        say: Say,
        outcome: Callable[[str, int, str], None],
        steps: bool = False,
    ) -> None:
        super().__init__(lambda bundle: PacedRunner(runner(bundle), bundle.plan, cost), runtime=runtime, clock=clock)
        self._load = cost.load
        self._say = say
        self._outcome = outcome
        self._steps = steps

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:
        """See :meth:`device_agent.work.Workshop.perform`."""
        device, done = materials.device, 0

        def stepped(steps: int) -> None:
            nonlocal done
            if steps > done and self._steps:
                self._say(device, "step", task.round, str(steps))
            done = max(done, steps)
            on_step(steps)

        self._say(device, "work", task.round, "")
        try:
            spend(self._load)
            product = super().perform(task, materials, stepped)
        except PowerCut:
            self._outcome(device, task.round, f"no power after step {done}")
            raise
        except Stopped:
            self._outcome(device, task.round, f"stopped after step {done}")
            raise
        except Exception as error:
            self._outcome(device, task.round, f"failed after step {done}: {type(error).__name__}")
            raise
        self._outcome(device, task.round, f"{product.steps} steps done")
        return product


def _elements(shape: Sequence[int]) -> int:
    found = 1
    for each in shape:
        found *= each
    return found
