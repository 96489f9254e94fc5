"""The object behind the fixture ``fleet``: an emulation that a test starts, looks at and judges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from coordinator.status import RunStatus
from edgepfl.errors import ConfigError
from simulators.broker import BrokerHandle
from simulators.emulation import Emulation, EmulationReport, Given, Told, emulate
from simulators.emulation.expectations import failures
from simulators.emulation.scenario import Scenario, without_faults
from simulators.pytest_plugin import kept, story
from simulators.pytest_plugin.background import Background
from simulators.pytest_plugin.device import Device
from simulators.pytest_plugin.markers import Setup, changed, faults_of, with_seed
from simulators.pytest_plugin.own import given_of
from simulators.pytest_plugin.witness import Witness

log = logging.getLogger("edgepfl.fleet")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """Where a fleet lives.

    Attributes:
        test: the node id of its test.
        scratch: makes a new empty folder.
        artifacts: of all tests; None: reports stay in the scratch folder.
        broker: gives a running broker.
        broker_kind: of private ones, for scenarios that kill theirs.
        patience: seconds to wait for anything.
        seed: in place of the fleet's own; None: that.
    """

    test: str
    scratch: Callable[[], Path]
    artifacts: Path | None
    broker: Callable[[], BrokerHandle]
    broker_kind: str = "auto"
    patience: float = 600.0
    seed: int | None = None


class Fleet(Witness):
    """Emulated devices and their coordinator.

    Nothing runs before the test asks: :attr:`report` carries the whole run out; :meth:`start` and :meth:`wait_for` let
    a test look and interfere while it goes on.

    Args:
        setup: what the markers say.
        place: where it lives.
    """

    def __init__(self, setup: Setup, place: Place) -> None:
        self._setup = setup
        self._place = place
        self._stack = ExitStack()
        self._emulation: Emulation | None = None
        self._background: Background | None = None
        self._report: EmulationReport | None = None
        self._folder: Path | None = None
        self._kept: Path | None = None
        self._asked: list[str] = []

    def __repr__(self) -> str:
        return f"<fleet of {self.scenario.fleet.agents} devices, seed {self.seed}>"

    @property
    def scenario(self) -> Scenario:
        """What is emulated, but for what is the test's own."""
        return self._seeded.scenario

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.scenario.seed

    @property
    def report(self) -> EmulationReport:
        """What came of it: the run is carried to its end for it, once."""
        if self._report is None:
            self._report = self.finish()
        return self._report

    @property
    def lost(self) -> int:
        """Reports that were sent and came to nothing."""
        return self.report.lost

    @property
    def bytes_per_round(self) -> float:
        """At the coordinator's socket, in and out, in the mean."""
        return self.report.bytes_per_round

    @property
    def seconds_per_round(self) -> float:
        """In the mean."""
        return self.report.seconds_per_round

    def train(self, model: object = None, *, data: object = None, **arguments: object) -> EmulationReport:
        """Train to the end, on devices that never trained before.

        Args:
            model: a ``torch.nn.Module``, an ``exporters.model.Model``, a function that gives one, or a name.
            data: of all devices, or a function that gives it: see :func:`simulators.pytest_plugin.own.data_of`.
            **arguments: those of the marker ``fleet``, in place of the marker's.

        Raises:
            ConfigError: there is no such argument, or its value is impossible.
        """
        self.close()
        own = {name: value for name, value in (("model", model), ("data", data)) if value is not None}
        self._setup = changed(self._setup, {**arguments, **own}, "fleet.train()")
        self._report = None
        return self.report

    def start(self) -> Self:
        """Start devices and run, and leave them to it.

        Raises:
            ConfigError: time is virtual, or it runs already.
        """
        self._open()
        return self

    def wait_for(self, round_: int) -> RunStatus:
        """Wait until a round is committed, or the run has ended."""
        emulation, background = self._open() if self._emulation is None else self._running()
        return background.run(emulation.wait_for(round_, self._place.patience))

    def finish(self) -> EmulationReport:
        """Wait until the run has ended; what came of it."""
        if self._emulation is None and self.scenario.time == "virtual":
            report = self._virtual()
        else:
            emulation, background = self._open() if self._emulation is None else self._running()
            report = background.run(emulation.finish(self._place.patience))
        self._report = report
        self._kept = self._keep(report)
        return report

    def inflict(self, kind: str, **arguments: object) -> None:
        """Let something go wrong now, with the arguments of the marker ``faults``."""
        emulation, background = self._running()
        for fault in faults_of((kind,), arguments):
            background.run(emulation.inflict(fault))

    def device(self, name: str) -> Device:
        """One device.

        Raises:
            ConfigError: the fleet has no device of that name.
        """
        self._asked.append(name)
        known = self._emulation.devices if self._emulation is not None else tuple(self.report.stories)
        if name not in known:
            raise ConfigError(
                f"there is no device {name!r}",
                where="fleet.device()",
                remedy=f"Name one of {', '.join(known[:8])}, ...",
            )
        return Device(name, self._story, lambda: self.report, self._running)

    def check(self) -> None:
        """Assert what the scenario expects of its run.

        Raises:
            AssertionError: something else came of it; each difference is told.
        """
        expect = self.scenario.expect
        faultless = self._faultless() if expect.same_model else None
        wrong = failures(self.report, expect, faultless=faultless)
        if wrong:
            raise AssertionError("\n".join([f"scenario {self.scenario.name}:", *wrong]))

    def close(self) -> None:
        """End everything that runs."""
        self._emulation = self._background = None
        self._stack.close()
        self._stack = ExitStack()

    def figures(self) -> Mapping[str, str | int | float]:
        """What JUnit XML shall hold of it."""
        report = self._so_far()
        if report is None:
            return {}
        return {
            "seed": report.seed,
            "agents": report.agents,
            "rounds": len(report.seconds),
            "lost": report.lost,
            "bytes_per_round": round(report.bytes_per_round),
            "seconds_per_round": round(report.seconds_per_round, 4),
            "report": str(self._kept or ""),
        }

    def account(self, test: str) -> str:
        """What to print under a failure."""
        report = self._so_far()
        if report is None:
            return ""
        replay = f"pytest '{test}' --edgepfl-seed {report.seed}"
        return story.account(report, self._asked, str(self._kept or ""), replay)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _seeded(self) -> Setup:
        seed = self._place.seed
        return self._setup if seed is None else with_seed(self._setup, seed)

    def _open(self) -> tuple[Emulation, Background]:
        if self._emulation is not None:
            raise ConfigError("it runs already", where="fleet.start()", remedy="Call it once")
        if self.scenario.time == "virtual":
            raise ConfigError(
                "in virtual time nobody can look while it runs",
                where="fleet",
                remedy="Ask for fleet.report, or mark the test with time='real'",
            )
        self._report = None
        folder = self._new_folder()
        given = replace(self._given(), broker=self._broker(), fleet=kept.fleet_name(folder))
        background = self._stack.enter_context(Background(self._place.patience))
        emulation = Emulation(self._for_broker(), folder, given=given, see=Progress())
        background.run(emulation.__aenter__())
        self._stack.callback(lambda: background.run(emulation.__aexit__(None, None, None)))
        background.run(emulation.start())
        self._emulation, self._background = emulation, background
        return emulation, background

    def _running(self) -> tuple[Emulation, Background]:
        if self._emulation is None or self._background is None:
            raise ConfigError("no run is under way", where="fleet", remedy="Call fleet.start() before")
        return self._emulation, self._background

    def _virtual(self) -> EmulationReport:
        return emulate(self.scenario, self._new_folder(), given=self._given(), see=Progress())

    def _faultless(self) -> EmulationReport:
        """What comes of the same scenario when nothing goes wrong."""
        folder = self._place.scratch()
        given = replace(self._given(), broker=self._broker(), fleet=kept.fleet_name(folder))
        return emulate(without_faults(self._for_broker()), folder, given=given)

    def _given(self) -> Given:
        return given_of(self._seeded)

    def _broker(self) -> BrokerHandle | None:
        """The session's; none in virtual time, and none where it is killed: then it must be the fleet's own."""
        own = self.scenario.time == "virtual" or any(fault.kind == "broker" for fault in self.scenario.faults)
        return None if own else self._place.broker()

    def _for_broker(self) -> Scenario:
        return msgspec.structs.replace(self.scenario, broker=self._place.broker_kind)

    def _new_folder(self) -> Path:
        self._folder = self._place.scratch()
        self._kept = None
        return self._folder

    def _keep(self, report: EmulationReport) -> Path | None:
        if self._folder is None:
            return None
        artifacts = self._place.artifacts
        target = self._folder if artifacts is None else kept.folder_for(artifacts, self._place.test)
        return kept.write(report, target, self._folder)

    def _so_far(self) -> EmulationReport | None:
        """The report, or what there is of it while a run is under way."""
        if self._report is not None or self._emulation is None or self._background is None:
            return self._report
        report = self._background.run(_called(self._emulation.report))
        if self._kept is None:
            self._kept = self._keep(report)
        return report

    def _story(self, device: str) -> tuple[Told, ...]:
        if self._report is not None:
            return self._report.stories.get(device, ())
        emulation, background = self._running()
        return background.run(_called(lambda: emulation.story(device)))


async def _called(function: Callable[[], Result]) -> Result:
    """A plain function, called in the loop that owns what it reads."""
    return function()


class Progress:
    """Logs each round once: pytest shows it under a failure, and at once with ``--log-cli-level=INFO``."""

    def __init__(self) -> None:
        self._round = -1

    def __call__(self, status: RunStatus) -> None:
        """See where the run stands."""
        if status.round != self._round or status.status != "running":
            self._round = status.round
            trained = min(status.round, status.rounds)  # one more only evaluates
            log.info("%s: %s, round %d of %d", status.run, status.status, trained, status.rounds)
