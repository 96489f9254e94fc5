"""How the fixtures' objects are made out of a test's markers and the session's options."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast

import pytest

from device_agent.data import Examples
from device_agent.sources import examples_of
from edgepfl.errors import ConfigError
from simulators.broker import BrokerHandle, open_broker
from simulators.emulation.scenario import Scenario
from simulators.emulation.scenario_file import find
from simulators.profiles import profile
from simulators.pytest_plugin.board import Board
from simulators.pytest_plugin.fleet import Fleet, Place
from simulators.pytest_plugin.kept import fleet_name
from simulators.pytest_plugin.markers import board_of, changed, scenario_name, setup_of
from simulators.pytest_plugin.options import Options
from simulators.pytest_plugin.service import CoordinatorService
from simulators.pytest_plugin.witness import Witness


@contextmanager
def without_traces() -> Iterator[None]:
    """While torch's records of what it traces do not get into pytest's captured log: thousands of lines a model.

    torch writes them if their logger has a handler, and pytest from 9 on gives its own to every logger that does not
    propagate.  Who asks torch for them, by TORCH_TRACE, gets them.
    """
    logger = logging.getLogger("torch.__trace")
    before, logger.disabled = logger.disabled, "TORCH_TRACE" not in os.environ
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def open_session_broker(config: pytest.Config) -> Iterator[BrokerHandle]:
    """The session's broker, as the options have it."""
    options = Options.of(config)
    kind = cast("Literal['auto', 'mosquitto', 'iotcore']", options.broker)
    with open_broker(options.url) if options.url else open_broker(kind=kind) as handle:
        yield handle


@contextmanager
def marked_fleet(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The fleet that a test's markers describe."""
    with _usage():
        marks, folder = _marks(request, "fleet", "faults"), request.path.parent
        setup = setup_of(marks, _scenario(request), name=request.node.name, folder=folder)
    with without_traces(), Fleet(setup, place_of(request, folders)) as fleet:
        yield fleet


def place_of(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Place:
    """Where a fleet lives that a fixture asks for."""
    options = Options.of(request.config)
    return Place(
        test=request.node.nodeid or "session",
        scratch=partial(folders.mktemp, "fleet"),
        artifacts=options.artifacts,
        broker=partial(request.getfixturevalue, "broker"),
        broker_kind="auto" if options.url else options.broker,
        patience=options.patience,
        seed=options.seed,
    )


class FleetMaker(Witness):
    """Makes fleets, and ends them with the session.

    Args:
        request: of the fixture.
        folders: makes folders.
    """

    def __init__(self, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> None:
        self._place = place_of(request, folders)
        self._folder = request.config.rootpath
        self._stack = ExitStack()
        self._stack.enter_context(without_traces())
        self._made: list[Fleet] = []

    def __call__(self, *faults: pytest.MarkDecorator, scenario: Scenario | None = None, **arguments: object) -> Fleet:
        """A fleet.

        Args:
            *faults: what goes wrong, as ``pytest.mark.faults("kill", devices=1, during=2)``.
            scenario: what the arguments change.
            **arguments: those of the marker ``fleet``.

        Raises:
            ConfigError: there is no such argument, or its value is impossible.
        """
        setup = setup_of([each.mark for each in faults], scenario, name="made", folder=self._folder)
        setup = changed(setup, arguments, "make_fleet()")
        place = replace(self._place, test=f"made-{len(self._made) + 1}")
        fleet = self._stack.enter_context(Fleet(setup, place))
        self._made.append(fleet)
        return fleet

    def figures(self) -> dict[str, str | int | float]:
        """Those of the newest fleet."""
        return dict(self._made[-1].figures()) if self._made else {}

    def account(self, test: str) -> str:
        """That of the newest fleet."""
        return self._made[-1].account(test) if self._made else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def open_coordinator(
    request: pytest.FixtureRequest, broker: BrokerHandle, folders: pytest.TempPathFactory
) -> Iterator[CoordinatorService]:
    """The coordinator of a test."""
    folder, patience = folders.mktemp("coordinator"), Options.of(request.config).patience
    with without_traces(), CoordinatorService(broker.url, fleet_name(folder), folder, patience) as service:
        yield service


@contextmanager
def marked_board(
    request: pytest.FixtureRequest, broker: BrokerHandle, folders: pytest.TempPathFactory
) -> Iterator[Board]:
    """The board that a test's marker describes; started where the marker gives data, else by the test."""
    options = Options.of(request.config)
    with _usage():
        given = board_of(request.node.get_closest_marker("board"))
        kind = profile(given.get("profile", "host"))
    name = given.get("name", "board")
    service = _coordinator_of(request)
    folder = folders.mktemp("board")
    fleet = service.fleet if service is not None else fleet_name(folder)
    with Board(name, kind, url=broker.url, fleet=fleet, folder=folder, patience=options.patience) as board:
        if "data" in given:
            board.start(_board_data(given, name))
            if service is not None:
                service.watch(board.check)
        yield board


def _coordinator_of(request: pytest.FixtureRequest) -> CoordinatorService | None:
    """The test's coordinator, if it has one."""
    if "coordinator" not in request.fixturenames:
        return None
    found = request.getfixturevalue("coordinator")
    return found if isinstance(found, CoordinatorService) else None


def _board_data(given: dict[str, Any], name: str) -> Examples:
    """One device's examples, from the marker's data or the function there."""
    data = given["data"]
    if callable(data):
        takes = inspect.signature(data).parameters
        known = {"device": name, "seed": given.get("seed", 0)}
        data = data(**{key: value for key, value in known.items() if key in takes}, **given.get("options", {}))
    return examples_of(data, "data of the board")


def _marks(request: pytest.FixtureRequest, *names: str) -> list[pytest.Mark]:
    """The markers of the module, the class and the test, the outermost first."""
    return [mark for mark in reversed(list(request.node.iter_markers())) if mark.name in names]


def _scenario(request: pytest.FixtureRequest) -> Scenario | None:
    mark = request.node.get_closest_marker("scenario")
    if mark is None:
        return None
    beside = request.path.parent / scenario_name(mark)
    return find(beside if beside.exists() else scenario_name(mark))


@contextmanager
def _usage() -> Iterator[None]:
    """An error in a marker is told without a traceback through the plugin: its text says what to write."""
    told = ""
    try:
        yield
    except ConfigError as error:
        told = str(error)
    if told:
        pytest.fail(told, pytrace=False)
