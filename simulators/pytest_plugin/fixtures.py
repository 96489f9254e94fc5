"""The fixtures.  What they need is imported when a test asks for them: torch alone takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from simulators.broker import BrokerHandle
    from simulators.pytest_plugin.board import Board
    from simulators.pytest_plugin.fleet import Fleet
    from simulators.pytest_plugin.making import FleetMaker
    from simulators.pytest_plugin.service import CoordinatorService


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[BrokerHandle]:
    """A running MQTT broker for the whole session, private unless ``--edgepfl-broker`` gives a URL."""
    from simulators.pytest_plugin.making import open_session_broker  # noqa: PLC0415  see the module's docstring

    with open_session_broker(pytestconfig) as handle:
        yield handle


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An emulated fleet, as the markers ``fleet``, ``faults`` and ``scenario`` describe it; it starts when asked."""
    from simulators.pytest_plugin.making import marked_fleet  # noqa: PLC0415  likewise

    with marked_fleet(request, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="session")
def make_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetMaker]:
    """Makes fleets that last for the session: for a fixture of your own that many tests share."""
    from simulators.pytest_plugin.making import FleetMaker  # noqa: PLC0415  likewise

    with FleetMaker(request, tmp_path_factory) as maker:
        yield maker


@pytest.fixture
def coordinator(
    request: pytest.FixtureRequest, broker: BrokerHandle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorService]:
    """A coordinator in a process of its own, which serves the fixture ``board`` and agents of your own."""
    from simulators.pytest_plugin.making import open_coordinator  # noqa: PLC0415  likewise

    with open_coordinator(request, broker, tmp_path_factory) as service:
        yield service


@pytest.fixture
def board(
    request: pytest.FixtureRequest, broker: BrokerHandle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Board]:
    """One agent in a process of its own, as the marker ``board`` describes it."""
    from simulators.pytest_plugin.making import marked_board  # noqa: PLC0415  likewise

    with marked_board(request, broker, tmp_path_factory) as made:
        yield made
