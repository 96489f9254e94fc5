"""Buffered runs over the bus, with real messages and real uploads, against NumPy and at their limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from _late import models
from _plans import bundle_of
from _scripted import (
    Hand,
    config,
    coordinating,
    drained,
    finished,
    hands,
    honest_fleet,
    play,
    ref_of,
    serving,
    until,
    upload_of,
)

from coordinator.arithmetic import Local
from coordinator.checkpoint import Saved, state_in
from coordinator.journal import Journal
from coordinator.service import Coordinator
from coordinator.staleness import weighting_of
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import ConfigError
from edgepfl.tree import Tree
from edgepfl.wire import Cancel, Commit, Member, Report, Task

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("ant", "bee", "cat")


def model_in(state: Path, journal: Journal, run: str) -> Tree:
    trees = state_in(BlobStore(state / "private"), journal.checkpoint(run))
    return trees["w"].map(lambda tensor: tensor.numpy())


def assert_same(found: Tree, wanted: Tree, *, exactly: bool = True) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=0 if exactly else 1e-6)


async def ended(
    bundle: Bundle,
    state: Path,
    *names: str,
    **settings: Any,  # noqa: ANN401  whatever RunConfig takes
) -> tuple[str, list[tuple[int, str, int]]]:
    """One run to its end: the final digest, and each result's round, device and staleness."""
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle, *names)):
        run = service.start_run(config(**settings), pack(bundle))
        status = await finished(service, run)
        assert (status.status, status.why) == ("done", "")
        results = service.journal.results(run)
        return status.state_sha256, [(result.round, result.device, result.staleness) for result in results]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedper", "fedem", "pfedme"])
def test_with_everyone_in_every_update_it_is_the_synchronous_run_bit_for_bit(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name)
        plain = await ended(bundle, tmp_path / "plain", rounds=3)
        found = await ended(bundle, tmp_path / "buffered", rounds=3, buffer=3, staleness="constant")
        assert found == plain
        assert len(found[1]) == 4 * 3

    play(scenario())


def test_with_one_device_and_a_buffer_of_one_it_is_sequential(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        alone = {"rounds": 4, "goal": 1, "minimum": 1}
        found = await ended(small, tmp_path / "buffered", "ant", buffer=1, **alone)
        assert found == await ended(small, tmp_path / "plain", "ant", **alone)
        assert found[1] == [(number, "ant", 0) for number in range(1, 6)]
        journal = Journal(tmp_path / "buffered" / "journal.db")
        row = journal.run()
        assert row is not None
        run = row.id
        w = models(small, journal.results(run), 0)[-1]
        assert_same(model_in(tmp_path / "buffered", journal, run), w)
        journal.close()

    play(scenario())


@pytest.mark.parametrize(("buffer", "staleness"), [(1, "polynomial:0.5"), (2, "polynomial:1"), (2, "hinge:0.7,1")])
def test_the_model_is_the_one_computed_by_hand(buffer: int, staleness: str, small: Bundle, tmp_path: Path) -> None:
    """Whichever reports the updates have: on the loopback bus that depends on who is screened first."""

    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with Slow(broker, small, state, buffer=buffer, staleness=staleness) as slow:
            for number in (1, 2, 3):
                await slow.update(number)
            for name in ("cat", "ant")[:buffer]:
                slow.report(name, slow.tasks[name])
            await slow.until(4)
            results = slow.service.journal.results(slow.run)
            late = {result.device: result.staleness for result in results if result.round == 4}
            assert late["cat"] == 3
            wanted = models(small, results, 0, weighting_of(staleness))[-1]
            assert_same(model_in(state, slow.service.journal, slow.run), wanted, exactly=False)
            plain = models(small, results, 0)[-1]
            assert any(not np.allclose(plain[name], wanted[name], atol=1e-3) for name in plain)

    play(scenario())


class Slow:
    """Three devices by hand, of which ``ant`` and ``bee`` report at once and ``cat`` when it is told to."""

    def __init__(
        self,
        broker: LoopbackBroker,
        bundle: Bundle,
        state: Path,
        **settings: Any,  # noqa: ANN401  likewise
    ) -> None:
        self.broker, self.bundle, self.state = broker, bundle, state
        self.settings = {"rounds": 9, "goal": 3, "minimum": 1, "buffer": 2, **settings}
        self.tasks: dict[str, Task] = {}
        self.service: Coordinator
        self.run: str

    async def __aenter__(self) -> Self:
        self._serving = coordinating(self.broker, self.state)
        self._hands = hands(self.broker, *NAMES)
        self.service = await self._serving.__aenter__()
        self.hands = dict(zip(NAMES, await self._hands.__aenter__(), strict=True))
        await drained(self.service, self.broker)
        self.run = self.service.start_run(config(**self.settings), pack(self.bundle))
        for name in NAMES:
            self.tasks[name] = await self.task(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._hands.__aexit__(None, None, None)
        await self._serving.__aexit__(None, None, None)

    async def task(self, name: str) -> Task:
        """The next task of a device."""
        while True:
            task = await self.hands[name].next(Task)
            if any(member.device == name for member in task.cohort):
                return task

    def report(self, name: str, task: Task) -> Report:
        hand: Hand = self.hands[name]
        report = hand.report(task, ref_of(upload_of(self.bundle.plan, task, name)))
        hand.say(report)
        return report

    async def until(self, number: int) -> None:
        """Until update ``number`` is committed."""
        await until(self.service, self.run, lambda: self.service.status(self.run).round >= number)

    async def update(self, number: int) -> None:
        """An update of those who are fast, and their next tasks."""
        fast = NAMES[: self.settings["buffer"]]
        for name in fast:
            self.report(name, self.tasks[name])
        await self.until(number)
        for name in fast:
            self.tasks[name] = await self.task(name)


def test_a_slow_device_is_not_waited_for_and_counts_later(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with Slow(broker, small, tmp_path / "state") as slow:
            first = slow.tasks["cat"]
            for number in (1, 2):
                await slow.update(number)
            ant = slow.tasks["ant"]
            assert (ant.round, ant.cohort[0].accepted_round, first.round) == (3, 2, 1)
            found = slow.service.status(slow.run)
            assert "cat since round 1" in found.waiting
            slow.report("cat", first)
            slow.report("ant", ant)
            await slow.until(3)
            assert await slow.hands["cat"].next(Commit) == Commit(slow.run, 1, ("cat",))
            assert slow.service.journal.accepted(slow.run) == {"ant": 3, "bee": 2, "cat": 1}
            later = await slow.task("cat")
            assert (later.round, later.cohort) == (4, (Member("ant", 3), Member("cat", 1)))

    play(scenario())


def test_a_report_that_comes_too_late_is_refused(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with Slow(broker, small, tmp_path / "state", max_staleness=1) as slow:
            first = slow.tasks["cat"]
            await slow.update(1)
            await slow.update(2)
            assert await slow.hands["cat"].next(Cancel) == Cancel(slow.run, 1, 0, "round 2 is over, and it is too late")
            slow.report("cat", first)
            assert await slow.hands["cat"].next(Commit) == Commit(slow.run, 1, ())
            await slow.update(3)
            assert {result.device for result in slow.service.journal.results(slow.run)} == {"ant", "bee"}

    play(scenario())


def test_a_report_that_comes_while_an_update_is_made_is_in_the_next_one(
    small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        made, update = asyncio.Event(), Local.update

        async def slowly(self: Local, devices: tuple[str, ...], fleet: tuple[str, ...]) -> Saved:
            await made.wait()
            return await update(self, devices, fleet)

        monkeypatch.setattr(Local, "update", slowly)
        broker = LoopbackBroker()
        async with Slow(broker, small, tmp_path / "state") as slow:
            for name in NAMES:
                slow.report(name, slow.tasks[name])
                await drained(slow.service, broker)
            slow.report("cat", slow.tasks["cat"])  # again: it is not told anything yet, and not screened twice
            await drained(slow.service, broker)
            made.set()
            await slow.until(1)
            slow.report("ant", await slow.task("ant"))
            await slow.until(2)
            results = [(r.round, r.device, r.staleness) for r in slow.service.journal.results(slow.run)]
            assert results == [(1, "ant", 0), (1, "bee", 0), (2, "ant", 0), (2, "cat", 1)]
            assert await slow.hands["cat"].next(Commit) == Commit(slow.run, 1, ("cat",))

    play(scenario())


def test_a_report_in_the_buffer_that_is_sent_again_is_answered_only_once_it_counts(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with Slow(broker, small, tmp_path / "state") as slow:
            await slow.update(1)
            report = slow.report("cat", slow.tasks["cat"])
            await drained(slow.service, broker)
            slow.hands["cat"].say(report)
            await drained(slow.service, broker)
            slow.report("ant", slow.tasks["ant"])
            assert await slow.hands["cat"].next(Commit) == Commit(slow.run, 1, ("cat",))
            slow.hands["cat"].say(report)
            assert await slow.hands["cat"].next(Commit) == Commit(slow.run, 1, ("cat",))

    play(scenario())


def test_an_algorithm_that_cannot_is_refused_before_the_run_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service:
            with pytest.raises(ConfigError, match="scaffold cannot be trained with a buffer"):
                service.start_run(config(buffer=2, minimum=1), pack(bundle_of("scaffold")))
            assert service.journal.run() is None

    play(scenario())
