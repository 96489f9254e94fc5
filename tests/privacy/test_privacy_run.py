"""Private runs with a real coordinator and real agents on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _fleet import FLEET, coordinating, everyone, gathered
from _scripted import finished

from coordinator.config import RunConfig
from coordinator.journal import Result
from coordinator.privacy import accountant
from coordinator.privacy.config import Privacy, Trust
from coordinator.privacy.events import Entry, Event
from coordinator.status import RunStatus
from coordinator.updater import numpy_of
from device_agent.data import Examples
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.tree import Trees
from simulators.broker import BrokerHandle, open_broker
from simulators.fleet import AgentFleet

PATIENCE = 120.0  # seconds; far more than anything here takes
COUNT = 3
GOLDEN = Path(__file__).parents[1] / "golden" / "virtual" / "fleet.bundle"
QUIET = Privacy(clip=0.05, noise=4.0, population=COUNT, epsilon=20.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerHandle]:
    with open_broker(kind="mosquitto") as handle:
        yield handle


@pytest.fixture(scope="module")
def ditto() -> Bundle:
    """On a perceptron of 53 parameters, as another test has it, because an export takes seconds."""
    return unpack(GOLDEN.read_bytes(), golden=False)


def six_inputs(number: int) -> Examples:
    """A device's data."""
    source = np.random.default_rng(number)
    x = source.standard_normal((20, 6), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return Examples(x[:16], y[:16], x[16:], y[16:])


def settings(privacy: Privacy | None, **fields: Any) -> RunConfig:  # noqa: ANN401  whatever RunConfig takes
    usual: dict[str, Any] = {"rounds": 1, "steps": 3, "gather": 0.2, "canary": 0.0, "privacy": privacy}
    config: RunConfig = everyone(COUNT, **{**usual, **fields})
    return config


DATA = {f"pi-{number:03d}": six_inputs(number) for number in range(COUNT)}


class Ended:
    """What a run came to, and what the coordinator knows of it."""

    def __init__(self, broker: BrokerHandle, folder: Path, bundle: Bundle, config: RunConfig) -> None:
        self.status: RunStatus
        self.state: Trees
        self.results: tuple[Result, ...]
        self.ledger: list[Entry]
        self.kept: dict[str, bytes | None]
        fleet = AgentFleet(broker.url, FLEET, DATA, folder / "fleet", threads=2)

        async def scenario() -> None:
            async with coordinating(broker.url, folder / "coordinator") as service, fleet:
                await gathered(service, COUNT)
                run = service.start_run(config, pack(bundle))
                await finished(service, run)
                self.status, self.results = service.status(run), service.journal.results(run)
                self.ledger = service.journal.ledger(run)
                self.state = numpy_of(service._active._saved.state)
                places = {name: fleet[name]._place for name in DATA}
                self.kept = {name: place.store.keep(run).data for name, place in places.items() if place is not None}

        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.fixture(scope="module")
def plain(broker: BrokerHandle, tmp_path_factory: pytest.TempPathFactory, ditto: Bundle) -> Ended:
    """The same run without privacy."""
    return Ended(broker, tmp_path_factory.mktemp("plain"), ditto, settings(None))


def far(ours: Ended, plain: Ended) -> float:
    """The Euclidean distance of the models."""
    parts = [ours.state["w"][name] - plain.state["w"][name] for name in plain.state["w"]]
    return float(np.sqrt(sum(float(np.sum(np.square(part))) for part in parts)))


def test_a_private_run(broker: BrokerHandle, tmp_path: Path, ditto: Bundle, plain: Ended) -> None:
    ours = Ended(broker, tmp_path, ditto, settings(QUIET))
    assert (ours.status.status, ours.status.why) == ("done", "")
    assert [(entry.round, entry.event, entry.clip) for entry in ours.ledger] == [(1, Event(4.0), 0.05)]
    account = ours.status.privacy
    assert account is not None
    assert account.epsilon == accountant.epsilon({Event(4.0): 1}, 1e-5)
    assert far(ours, plain) > 0.01
    told = [(result.metrics, result.seconds, result.examples, set(result.kept)) for result in ours.results]
    assert told == [({}, {}, 1, {"0"})] * (2 * COUNT)
    assert ours.status.metrics == {}
    assert plain.status.metrics.keys() >= {"loss", "accuracy.personal"}


def test_what_a_device_keeps_is_exact(broker: BrokerHandle, tmp_path: Path, ditto: Bundle, plain: Ended) -> None:
    """In the first round all start from the same model, so the personal models are those of the plain run."""
    ours = Ended(broker, tmp_path, ditto, settings(QUIET))
    assert ours.kept == plain.kept
    assert len(set(ours.kept.values())) == COUNT


def test_little_noise_and_a_wide_bound_are_the_plain_run(
    broker: BrokerHandle, tmp_path: Path, ditto: Bundle, plain: Ended
) -> None:
    """Far from private: the sum of three contributions of norm 0.1 or so, with noise of 1e-3."""
    loose = Privacy(clip=1.0, noise=1e-3, population=COUNT, epsilon=1e6, delta=0.5)
    ours = Ended(broker, tmp_path, ditto, settings(loose))
    assert (ours.status.status, ours.status.why) == ("done", "")
    count = sum(np.size(tensor) for tensor in plain.state["w"].values())
    assert 0 < far(ours, plain) < 2 * 1e-3 * float(np.sqrt(count)) / COUNT


def test_it_stops_at_its_budget_with_a_last_evaluation(
    broker: BrokerHandle, tmp_path: Path, ditto: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    limit = accountant.epsilon({Event(4.0): 2}, 1e-5) + 1e-9
    privacy = Privacy(clip=0.05, noise=4.0, population=COUNT, epsilon=limit, metrics=True)
    ended = Ended(broker, tmp_path, ditto, settings(privacy, rounds=9))
    assert ended.status.status == "done"
    assert ended.status.why.startswith(f"the privacy budget of epsilon {limit:g} at delta 1e-05 is spent: ")
    assert "only the final evaluation is left" in caplog.text
    assert [entry.round for entry in ended.ledger] == [1, 2]
    assert ended.status.privacy is not None
    assert ended.status.privacy.epsilon == accountant.epsilon({Event(4.0): 2}, 1e-5)
    assert sorted({result.round for result in ended.results}) == [1, 2, 10]
    assert "accuracy.personal" in ended.status.metrics


def test_local_noise_reaches_the_coordinator(broker: BrokerHandle, tmp_path: Path, ditto: Bundle, plain: Ended) -> None:
    privacy = Privacy(clip=0.05, noise=40.0, population=COUNT, epsilon=20.0, trust=Trust.LOCAL)
    ours = Ended(broker, tmp_path, ditto, settings(privacy))
    count = sum(np.size(tensor) for tensor in plain.state["w"].values())
    expected = 0.05 * 40.0 * float(np.sqrt(count / COUNT))
    assert 0.3 * expected < far(ours, plain) < 2 * expected
    assert ours.ledger[0].devices == tuple(sorted(DATA))
    assert ours.ledger[0].epsilon == accountant.known(Event(40.0, replaced=True), 1, 1e-5)


def test_under_secure_aggregation(broker: BrokerHandle, tmp_path: Path, ditto: Bundle, plain: Ended) -> None:
    """The sum is noised when its masks are off; every device weighs the same there, too."""
    ours = Ended(broker, tmp_path, ditto, settings(QUIET, secagg=True))
    assert (ours.status.status, ours.status.why) == ("done", "")
    assert ours.kept == plain.kept
    count = sum(np.size(tensor) for tensor in plain.state["w"].values())
    assert 0.3 < far(ours, plain) / (0.05 * 4.0 * float(np.sqrt(count)) / COUNT) < 4
    assert "devices are trusted to clip" in str(ours.status.privacy)
