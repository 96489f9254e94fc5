"""The coordinator dies at every point at which its storage changes; the next one ends the run with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from _plans import bundle_of
from _power import cuts_of
from _scripted import config, coordinating, drained, finished, honest_fleet, play, serving, watched

from coordinator.checkpoint import state_in
from coordinator.journal import Journal, Status
from coordinator.rounds import Phase
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import Commit

pytestmark = pytest.mark.usefixtures("impatient")


async def _undisturbed(bundle: Bundle, state: Path) -> tuple[str, str]:
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        run = service.start_run(config(), pack(bundle))
        return run, (await finished(service, run)).state_sha256


async def _gone_on(bundle: Bundle, state: Path) -> tuple[str, str, list[tuple[int, str]]]:
    """How a run ends that another coordinator left, with devices that know nothing of it."""
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        run = service.status().run
        status = await finished(service, run)
        return status.status, status.state_sha256, [(r.round, r.device) for r in service.journal.results(run)]


@pytest.mark.parametrize(
    ("name", "settings", "every"),
    [
        pytest.param("fedavg", {}, 1, id="one download for all"),
        pytest.param("fpfc", {"finalize": "cluster_mean"}, 1, id="one for each device, and a last touch"),
        pytest.param("scaffold", {}, 4, id="a slot that is rebuilt"),
        pytest.param("l2sgd", {"p": 0.7}, 4, id="the server's coins"),
    ],
)
def test_a_power_cut_anywhere(name: str, settings: dict[str, float | str], every: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name, **settings)
        with cuts_of(tmp_path / "state", tmp_path) as cuts:
            run, digest = await _undisturbed(bundle, tmp_path / "state")
        phases = set()
        begun = 0
        for place, (cut, state) in enumerate(cuts):
            journal = Journal(state / "journal.db")
            found, row = journal.open_state(run), journal.run(run)
            journal.close()
            phases.add(found.phase if found is not None else None)
            if row is None or place % every:
                continue  # before the run was accepted, or one of many
            begun += 1
            status, after, results = await _gone_on(bundle, state)
            assert (cut, status, after) == (cut, "done", digest)
            assert results == [(number, who) for number in (1, 2, 3) for who in ("ant", "bee", "cat")]
        assert phases == {None, Phase.SELECTING, Phase.REPORTING, Phase.REDUCING}
        assert begun > 60 // every

    play(scenario())


def test_who_was_seen_is_known_after_a_power_cut_anywhere(tmp_path: Path) -> None:
    """SCAFFOLD divides the sum of all variates by the devices that the run knows, chosen or not."""
    names = ("ant", "bee", "cat", "dog")
    bundle = bundle_of("scaffold")
    settings = config(goal=2, minimum=2, gather=1e-6, rounds=1)

    def check(journal: Journal, run: str, state: Path) -> None:
        checkpoint = journal.checkpoint(run)
        assert journal.accepted(run).keys() == set(names)
        trees = state_in(BlobStore(state / "private"), checkpoint)
        for name, total in trees["c_sum"].items():
            np.testing.assert_allclose(total / trees["c"][name], len(names), rtol=1e-6)

    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle, *names)):
            await drained(service, broker)
            with cuts_of(state, tmp_path) as cuts:
                run = service.start_run(settings, pack(bundle))
                await finished(service, run)
            check(service.journal, run, state)
        known = 0
        for _, copy in cuts[::2]:
            journal = Journal(copy / "journal.db")
            found = journal.open_state(run)
            here = {*journal.accepted(run), *(found.joined if found is not None else ())}
            journal.close()
            assert here in (set(), set(names))
            if not here:
                continue  # who comes first after the cut is another matter
            known += 1
            broker = LoopbackBroker()
            async with coordinating(broker, copy) as service, serving(*honest_fleet(broker, bundle, *names)):
                await finished(service, run)
                check(service.journal, run, copy)
        assert known > 10

    play(scenario())


def test_an_abandoned_attempt_is_followed_by_the_next(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        state = tmp_path / "state"
        async with coordinating(broker, state) as service, serving(*honest_fleet(broker, small)):
            with cuts_of(state, tmp_path) as cuts:
                run = service.start_run(config(max_norm=1e-9, attempts=2), pack(small))  # nobody's upload passes
                status = await finished(service, run)
            assert (status.status, status.round) == ("failed", 0)
            assert "abandoned 2 times" in status.why
        abandoned = 0
        for _, copy in cuts:
            journal = Journal(copy / "journal.db")
            found = journal.open_state(run)
            journal.close()
            if found is None or found.phase is not Phase.ABANDONED:
                continue
            abandoned += 1
            assert (await _gone_on(small, copy))[0] == "failed"
        assert abandoned >= 2

    play(scenario())


def test_a_stop_that_was_written_down_is_a_stop(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        state = tmp_path / "state"
        async with coordinating(broker, state) as service, serving(*honest_fleet(broker, small, "ant")):
            run = service.start_run(config(), pack(small))
            await watched(service, run, lambda status: bool(status.here))
            with cuts_of(state, tmp_path) as cuts:
                service.stop_run(run)
            assert service.status(run).status == Status.STOPPED
        after_append = next(copy for name, copy in cuts if name.startswith("after append"))
        assert (await _gone_on(small, after_append))[0] == "stopped"
        before = next(copy for name, copy in cuts if name.startswith("before append"))
        assert (await _gone_on(small, before))[0] == "done"

    play(scenario())


def test_who_missed_the_commit_is_told_after_the_restart(small: Bundle, tmp_path: Path) -> None:
    """A device reports again what it never heard about: the answer is the same whoever gives it."""

    async def scenario() -> None:
        await _undisturbed(small, tmp_path)
        broker = LoopbackBroker()
        late, stranger = honest_fleet(broker, small, "ant", "dog")
        async with coordinating(broker, tmp_path) as service:
            run = service.status().run
            for device in (late, stranger):
                async with device:
                    device.say(device.report_of(run, 3, None))
                    commit = await device.next(Commit)
                    assert (commit.run, commit.round) == (run, 3)
                    assert commit.accepted == (("ant",) if device is late else ())

    play(scenario())
