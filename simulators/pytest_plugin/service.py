"""The object behind the fixture ``coordinator``: the service in a process of its own, and its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator.config import RunConfig
from coordinator.journal import Status
from coordinator.status import RunStatus
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import RunError
from edgepfl.validation import convert
from simulators.coordination import Coordination
from simulators.emulation.scenario import WorkTable
from simulators.pytest_plugin.kept import ending
from simulators.pytest_plugin.own import bundle_of, data_of
from simulators.pytest_plugin.witness import Witness

Found = TypeVar("Found")
_LOOK = 1.0  # seconds between two looks at what is watched


class CoordinatorService(Witness):
    """``edgepfl coordinator`` in a process of its own, for as long as the context lasts.

    Args:
        url: the broker's.
        fleet: the fleet's name, which agents must have too.
        folder: empty, for settings, state and log.
        patience: seconds to wait for anything.

    Attributes:
        url: likewise.
        fleet: likewise.
        run: id of the run that was started last.
    """

    def __init__(self, url: str, fleet: str, folder: Path, patience: float) -> None:
        self.url, self.fleet, self.run = url, fleet, ""
        self._folder, self._patience = folder, patience
        self._coordination = Coordination(url, fleet, folder)
        self._command = self._coordination.process
        self._watch: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<coordinator of fleet {self.fleet} on {self.url}>"

    @property
    def process(self) -> int | None:
        """The number of its process."""
        return self._command.process

    @property
    def memory_mib(self) -> float:
        """The largest proportional set size that was seen, now included."""
        self._command.measure()
        return self._command.pss_mib

    @property
    def log_file(self) -> Path:
        """Where it logs."""
        return self._folder / "coordinator.log"

    def bundle(
        self,
        model: object,
        data: object,
        *,
        algorithm: str = "fedavg",
        settings: Mapping[str, Any] | None = None,
        batch: int = 16,
        seed: int = 0,
        runtimes: tuple[str, ...] = ("onnx",),
    ) -> Bundle:
        """A bundle of an own model.

        Args:
            model: see :func:`simulators.pytest_plugin.own.model_for`.
            data: one device's examples or a whole fleet's, for the shapes of a module's inputs.
            algorithm: its name.
            settings: its hyperparameters.
            batch: examples of a minibatch.
            seed: of the initial parameters.
            runtimes: to export for.
        """
        fleet = data if isinstance(data, Mapping) and "train_x" not in data else {"board": data}
        work = WorkTable(algorithm=algorithm, settings=dict(settings or {}), batch=batch)
        described = data_of(fleet, devices=len(fleet), seed=seed)
        return bundle_of(model, described, work, seed=seed, runtimes=runtimes)

    def start(self, bundle: Bundle, **run: object) -> str:
        """Start a run; its id.

        Args:
            bundle: what is trained.
            **run: settings of the run, such as ``rounds=3``, as ``edgepfl run start`` has them; one device is enough
                unless ``goal`` and ``minimum`` say something else.

        Raises:
            ConfigError: there is no such setting, or it has an impossible value.
            RunError: the coordinator refuses.
        """
        config = _run_config(run)
        file = self._folder / "test.bundle"
        file.write_bytes(pack(bundle))
        self.run = self._wait(self._coordination.start(file, config))
        return self.run

    def train(self, bundle: Bundle, **run: object) -> RunStatus:
        """Start a run, and wait for its end.

        Raises:
            RunError: it did not end as it should.
        """
        self.start(bundle, **run)
        return self.finish()

    def wait_for(self, round_: int) -> RunStatus:
        """Wait until a round of the run is committed, over restarts of the coordinator.

        Raises:
            RunError: the run ended before.
        """
        status = self._wait(self._reached(round_))
        if status.round < round_:
            raise RunError(f"it ended after round {status.round} as {status.status}: {status.why}", where=self.run)
        return status

    def finish(self) -> RunStatus:
        """Wait until the run is done, over restarts of the coordinator.

        Raises:
            RunError: it failed or was stopped.
        """
        status = self._wait(self._reached(None))
        if status.status != Status.DONE:
            raise RunError(f"it ended as {status.status}: {status.why}", where=f"run {self.run}")
        return status

    def status(self) -> RunStatus:
        """Where the run stands now, with all its devices."""
        return self._wait(self._coordination.status(self.run))

    def kill(self) -> None:
        """End it as a power cut would."""
        self._command.kill()

    def restart(self) -> None:
        """Start it again, after :meth:`kill`."""
        self._command.start()

    def check(self) -> None:
        """See that it runs.

        Raises:
            RunError: it ended by itself.
        """
        self._command.check()

    def watch(self, check: Callable[[], None]) -> None:
        """Look at something too while waiting for a run: it raises what ends the wait."""
        self._watch.append(check)

    def figures(self) -> Mapping[str, str | int | float]:
        """What JUnit XML shall hold of it."""
        return {"coordinator_log": str(self.log_file)} if self.run else {}

    def account(self, test: str) -> str:  # noqa: ARG002  only a fleet says how to have it again
        """The end of its log."""
        return ending(self.log_file, "the coordinator's log")

    def __enter__(self) -> Self:
        self._coordination.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._coordination.__exit__(kind, error, trace)

    def _wait(self, work: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run(self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, Found]) -> Found:
        """What the work gives; nobody waits for a process that has ended."""
        task = asyncio.ensure_future(work)
        try:
            async with asyncio.timeout(self._patience):
                while not (await asyncio.wait({task}, timeout=_LOOK))[0]:
                    for check in self._watch:
                        check()
                return task.result()
        except TimeoutError:
            raise RunError(f"not done within {self._patience:g} s", where="the coordinator") from None
        finally:
            task.cancel()

    async def _reached(self, round_: int | None) -> RunStatus:
        """The first status of the run at this round, or at its end."""
        async for status in self._coordination.follow(self.run):
            if status.status != Status.RUNNING or (round_ is not None and status.round >= round_):
                return status
        raise AssertionError("a run is followed to its end")


def _run_config(given: Mapping[str, object]) -> RunConfig:
    goal = given.get("goal", 1)
    values = {"goal": goal, "minimum": goal, "evaluate_every": 1, **given}
    return convert(values, RunConfig, lambda key: f"the coordinator's run, {key}" if key else "the coordinator's run")
