"""The coordinator of a buffered run dies at every point at which its storage changes: no seat and no report is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from _late import models
from _power import cuts_of
from _scripted import config, coordinating, finished, honest_fleet, play, serving

from coordinator.checkpoint import state_in
from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.seats import Phase, Round, State
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.loopback import LoopbackBroker

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("ant", "bee", "cat")
TOGETHER = config(buffer=3, staleness="constant")
ONE_BY_ONE = config(rounds=5, buffer=1, minimum=1, staleness="constant")


async def undisturbed(bundle: Bundle, state: Path, settings: RunConfig) -> tuple[str, str]:
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        run = service.start_run(settings, pack(bundle))
        return run, (await finished(service, run)).state_sha256


async def gone_on(bundle: Bundle, state: Path) -> tuple[str, str]:
    """How a run ends that another coordinator left, with devices that know nothing of it."""
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        status = await finished(service, service.status().run)
        return status.status, status.state_sha256


def left(state: Path, run: str) -> tuple[Round | None, bool]:
    """The open round in the files, and whether they know the run."""
    journal = Journal(state / "journal.db")
    found, row = journal.open_state(run), journal.run(run)
    journal.close()
    return found, row is not None


def test_with_everyone_in_every_update_the_bits_are_the_same_after_a_power_cut_anywhere(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        with cuts_of(tmp_path / "state", tmp_path) as cuts:
            run, digest = await undisturbed(small, tmp_path / "state", TOGETHER)
        phases, begun = set(), 0
        for place, (cut, state) in enumerate(cuts):
            found, known = left(state, run)
            phases.add(found.phase if found is not None else None)
            if known and place % 3 == 0:
                begun += 1
                assert (cut, *await gone_on(small, state)) == (cut, "done", digest)
        assert phases == {None, Phase.SELECTING, Phase.REPORTING, Phase.REDUCING}
        assert begun > 20

    play(scenario())


def test_with_some_in_an_update_nobody_at_work_is_forgotten_and_every_report_counts_once(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        with cuts_of(tmp_path / "state", tmp_path) as cuts:
            run, _ = await undisturbed(small, tmp_path / "state", ONE_BY_ONE)
        carried = 0
        for place, (_, state) in enumerate(cuts):
            found, known = left(state, run)
            if not known or found is None or place % 3:
                continue
            carried += any(seat.task is not None for seat in found.seats.values())
            assert (await gone_on(small, state))[0] == "done"
            check(small, state, run, found)
        assert carried > 5

    def check(bundle: Bundle, state: Path, run: str, before: Round) -> None:
        journal = Journal(state / "journal.db")
        results = journal.results(run)
        trained = {(result.device, result.base) for result in results}
        assert len(trained) == len(results)
        trains = before.number <= ONE_BY_ONE.rounds
        for device in before.devices(State.REPORTED, State.WORKING) if trains else ():
            base, _ = before.task_of(device) or (0, 0)
            later = [r for r in results if r.device == device and before.number <= r.round <= ONE_BY_ONE.rounds]
            if later:
                assert later[0].base == base  # it began no task anew
            if before.seats[device].state is State.REPORTED:
                assert later[0].round == before.number
        wanted = models(bundle, results, ONE_BY_ONE.seed)[-1]
        found = state_in(BlobStore(state / "private"), journal.checkpoint(run))["w"]
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
        journal.close()

    play(scenario())


def test_the_journal_alone_knows_who_goes_on_after_an_update(small: Bundle, tmp_path: Path) -> None:
    """A cut just after the commit, before the next round was begun."""

    async def scenario() -> None:
        with cuts_of(tmp_path / "state", tmp_path) as cuts:
            run, _ = await undisturbed(small, tmp_path / "state", ONE_BY_ONE)
        after = [left(state, run)[0] for cut, state in cuts if cut.startswith("after commit")]
        assert len(after) == 6
        going_on = [found for found in after if found is not None and found.number <= ONE_BY_ONE.rounds]
        assert len(going_on) == 4
        for found in going_on:
            assert (found.phase, found.attempt) == (Phase.SELECTING, 0)
            assert found.seats
            assert all(seat.task is not None and seat.task[0] < found.number for seat in found.seats.values())
            assert {seat.task[0] for seat in found.seats.values() if seat.task} | {found.number} == found.bases.keys()

    play(scenario())
