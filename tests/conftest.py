"""Fixtures for every room."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from _breadth import FULL, chosen
from _components import absent
from _once import FOLDER
from _order import ordered
from hypothesis import HealthCheck, settings

from edgepfl.bus.loopback import LoopbackBroker
from simulators.broker import BrokerHandle, installed, open_broker

collect_ignore = ["e2e/outside_project"]  # somebody else's: test_outside_project.py runs it where it belongs
pytest_plugins = ["_coordinating", "_killing", "_thrifty"]

settings.register_profile(
    "edgepfl",
    deadline=None,  # busy machines
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=int(os.environ.get("EDGEPFL_EXAMPLES", "50")),  # where a test does not say; more by night
)
settings.load_profile("edgepfl")


@pytest.fixture(scope="session", autouse=True)
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names the folder of :mod:`_once`: one for all workers of a session."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    os.environ[FOLDER] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait; skip what needs a GPU where there is none (``pytest -m cuda`` elsewhere)."""
    if not FULL:
        items[:] = _on_a_broker_each(items)
    places = ordered([item.nodeid.partition("::")[0] for item in items])
    items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            item.add_marker(pytest.mark.skip(reason="this machine has no CUDA device"))


def _on_a_broker_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests without those that take long and run on another broker already; the bus itself is tried on all."""
    brokers: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if (broker := _broker_of(item)) is not None:
            brokers[_name_of(item)].add(broker)
    its = {name: chosen(name, sorted(found)) for name, found in brokers.items()}
    return [item for item in items if _broker_of(item) in {None, its.get(_name_of(item))}]


def _broker_of(item: pytest.Item) -> str | None:
    """What broker a test that takes long runs on."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or not item.nodeid.startswith(("tests/crash/", "tests/e2e/", "tests/promises/")):
        return None
    found: str | None = callspec.params.get("broker")
    return found


def _name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="module")
def graphs_once() -> Iterator[None]:
    """Each graph is exported once in a session, whichever bundle has it."""
    from _graphs_once import graphs_exported_once  # noqa: PLC0415  exporters take seconds to import

    with graphs_exported_once():
        yield


_HOW = {"mosquitto": "apt install mosquitto", "iotcore": "pip install 'edgepfl[sim]'"}


def _start(kind: Literal["mosquitto", "iotcore"]) -> BrokerHandle:
    if not installed(kind):
        absent(kind, _HOW[kind])
    return open_broker(kind=kind)


@pytest.fixture(params=["mosquitto", "iotcore"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerHandle]:
    """Each broker we support, private and running; skipped where it is not installed, but in CI that fails."""
    with _start(request.param) as handle:
        yield handle


@pytest.fixture(params=["loopback", "mosquitto", "iotcore"])
def transport(request: pytest.FixtureRequest) -> Iterator[BrokerHandle | LoopbackBroker]:
    """What each kind of bus connects to."""
    if request.param == "loopback":
        yield LoopbackBroker()
    else:
        with _start(request.param) as handle:
            yield handle
