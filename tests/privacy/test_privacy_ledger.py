"""A run's account: written before anything is released, kept over power cuts, and what ends the run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import _power
import msgspec
import numpy as np
import pytest
from _plans import bundle_of
from _scripted import config, coordinating, finished, honest_fleet, play, serving
from scipy import stats

from coordinator.config import RunConfig
from coordinator.journal import Checkpoint, Journal, RunRow
from coordinator.privacy import accountant, sampling
from coordinator.privacy.account import account_of, line
from coordinator.privacy.accounting import Accounting
from coordinator.privacy.config import Privacy, Sampling, Trust
from coordinator.privacy.events import Entry, Event
from coordinator.seats import Policy, Round
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.wire import BlobRef, Report

NAMES = ("ant", "bee", "cat")
POLICY = Policy(3, 1)


def report(device: str, upload: str = "0" * 64) -> Report:
    return Report(device, 1, "run", 1, 0, 1, 3, BlobRef(upload, 3, b"abc"), {"loss": 0.5}, {"train": 1.0}, "f" * 64)


def reports(*devices: str) -> dict[str, Report]:
    return {device: report(device) for device in devices}


def begun(privacy: Privacy, **fields: Any) -> tuple[Accounting, Journal, RunConfig]:  # noqa: ANN401  whatever RunConfig takes
    settings = RunConfig(**{"goal": 3, "minimum": 1, "rounds": 9, "privacy": privacy, **fields})
    journal = Journal(Path(":memory:"))
    journal.create(RunRow("run", settings, "b" * 64, "running", ""), Checkpoint(0, "a" * 64, ()))
    found = Accounting.of("run", settings, journal, random.Random(1).getrandbits)
    assert found is not None
    return found, journal, settings


def test_a_run_that_is_not_private_has_no_account() -> None:
    journal = Journal(Path(":memory:"))
    assert Accounting.of("run", RunConfig(), journal, random.getrandbits) is None
    assert account_of(journal, "run", RunConfig(), detailed=True) is None


def test_a_sum_is_in_the_ledger_before_it_has_a_key() -> None:
    accounting, journal, settings = begun(Privacy(noise=2.0, population=3))
    accounting.key(Round(1, 0, POLICY), NAMES, reports(*NAMES), 0.5)
    [entry] = journal.ledger("run")
    assert (entry.round, entry.attempt, entry.event, entry.devices, entry.clip) == (1, 0, Event(2.0), NAMES, 0.5)
    assert entry.epsilon == accountant.epsilon({Event(2.0): 1}, 1e-5)
    assert entry.known == accountant.known(Event(2.0), 1, 1e-5)
    account = account_of(journal, "run", settings, detailed=True)
    assert account is not None
    assert (account.epsilon, account.releases, account.most) == (entry.epsilon, 1, 1)
    assert [(each.event, each.times) for each in account.events] == [(Event(2.0), 1)]
    assert "at delta 1e-05" in line(account)


def test_the_same_sum_has_the_same_key_and_another_sum_another() -> None:
    accounting, journal, settings = begun(Privacy(noise=2.0, population=3))
    r = Round(1, 0, POLICY)
    key = accounting.key(r, NAMES, reports(*NAMES), 1.0)
    again = Accounting.of("run", settings, journal, random.Random(2).getrandbits)  # after a power cut
    assert again is not None
    assert again.key(r, NAMES, reports(*NAMES), 1.0) == key
    assert len(journal.ledger("run")) == 1
    fewer = again.key(r, NAMES[:2], reports(*NAMES), 1.0)
    changed = again.key(r, NAMES, {**reports("ant", "bee"), "cat": report("cat", "1" * 64)}, 1.0)
    assert len({key, fewer, changed}) == 3
    journal.open_round("run", Round(1, 1, POLICY))  # given up: nobody can make that noise again
    assert journal.secret("run", 1, 0) is None
    assert again.key(Round(1, 1, POLICY), NAMES, reports(*NAMES), 1.0) != key
    assert [(entry.round, entry.attempt) for entry in journal.ledger("run")] == [(1, 0), (1, 1)]
    assert journal.ledger("run")[1].epsilon == accountant.epsilon({Event(2.0): 2}, 1e-5)


def test_local_contributions_count_when_they_are_asked_for() -> None:
    accounting, journal, _ = begun(Privacy(noise=20.0, trust=Trust.LOCAL, population=3))
    for attempt in range(2):
        assert accounting.sample(NAMES, 3, 1.0, Round(1, attempt, POLICY)) == NAMES
    accounting.key(Round(1, 1, POLICY), NAMES, reports(*NAMES), 1.0)
    ledger = journal.ledger("run")
    assert [(entry.attempt, entry.devices) for entry in ledger] == [(0, NAMES), (1, NAMES)]
    assert ledger[1].epsilon == accountant.known(Event(20.0, replaced=True), 2, 1e-5)


def test_the_budget_ends_before_it_is_exceeded() -> None:
    event = Event(2.0)
    limit = accountant.epsilon({event: 3}, 1e-5) + 1e-9
    accounting, _, _ = begun(Privacy(noise=2.0, population=3, epsilon=limit))
    for number in (1, 2, 3):
        assert accounting.exhausted() == ""
        assert accounting.ended() == ""
        accounting.key(Round(number, 0, POLICY), NAMES, reports(*NAMES), 1.0)
    why = accounting.exhausted()
    assert why.startswith(f"the privacy budget of epsilon {limit:g} at delta 1e-05 is spent: ")
    assert accounting.ended() == why


def test_a_small_fixed_sample_of_few_waits_for_more() -> None:
    few = Event(40.0, sample=2, source=2, replaced=True)
    many = Event(40.0, sample=2, source=200, replaced=True)
    limit = (accountant.epsilon({few: 1}, 1e-5) + accountant.epsilon({many: 1}, 1e-5)) / 2
    privacy = Privacy(noise=40.0, sampling=Sampling.FIXED, epsilon=limit)
    accounting, journal, _ = begun(privacy, goal=2)
    r = Round(1, 0, POLICY)
    assert accounting.sample(("ant", "bee"), 2, 1.0, r) == ()
    names = tuple(f"pi-{number:03}" for number in range(200))
    chosen = accounting.sample(names, 2, 1.0, r)
    assert len(chosen) == 2
    seated = Round(1, 0, POLICY, seats=dict.fromkeys(chosen))  # type: ignore[arg-type]  # only their names matter
    accounting.key(seated, chosen, reports(*chosen), 1.0)
    assert journal.ledger("run")[0].event == many


def test_poisson_samples_wait_until_enough_are_here() -> None:
    privacy = Privacy(noise=3.0, population=400, fraction=0.2)
    accounting, _, settings = begun(privacy, goal=200)
    names = tuple(f"pi-{number:03}" for number in range(400))
    assert accounting.sample(names[:20], 200, 1.0, Round(1, 0, POLICY)) == ()
    sizes = [len(accounting.sample(names, 200, 1.0, Round(1, 0, POLICY))) for _ in range(200)]
    assert len(set(sizes)) > 10
    assert settings.minimum <= min(sizes)
    assert abs(np.mean(sizes) - 80) * (200 / (400 * 0.2 * 0.8)) ** 0.5 < 5.4


def test_each_device_is_drawn_by_itself() -> None:
    draw = random.Random(3).getrandbits
    samples = [sampling.poisson(NAMES, 0.3, draw) for _ in range(20_000)]
    observed = [samples.count(which) for which in ((), ("ant",), ("bee",), ("cat",), ("ant", "bee"))]
    expected = [20_000 * 0.3**k * 0.7 ** (3 - k) for k in (0, 1, 1, 1, 2)]
    rest = 20_000 - sum(observed), 20_000 - sum(expected)
    assert stats.chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue > 1e-7
    assert sampling.poisson(NAMES, 1.0, draw) == NAMES


def test_fixed_samples_are_uniform() -> None:
    draw = random.Random(4).getrandbits
    samples = [sampling.fixed(("dog", *NAMES), 2, draw) for _ in range(12_000)]
    pairs = sorted(set(samples))
    assert len(pairs) == 6
    assert stats.chisquare([samples.count(pair) for pair in pairs]).pvalue > 1e-7
    assert sampling.fixed(NAMES, 9, draw) == NAMES


def test_what_a_device_should_not_have_told_is_dropped() -> None:
    quiet, _, _ = begun(Privacy(population=3))
    kept = quiet.discreet(report("ant"))
    assert (kept.metrics, kept.seconds, kept.kept, kept.upload) == ({}, {}, "0" * 64, report("ant").upload)
    loud, _, _ = begun(Privacy(population=3, metrics=True))
    assert loud.discreet(report("ant")) == report("ant")


# Power cuts.


def states_of(journal: Journal, run: str) -> dict[int, str]:
    return dict(journal._rows("SELECT round, state FROM checkpoints WHERE run = ?", run))


async def _undisturbed(bundle: Bundle, state: Path, settings: RunConfig) -> str:
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        run = service.start_run(settings, pack(bundle))
        await finished(service, run)
        return run


async def _gone_on(bundle: Bundle, state: Path, run: str) -> tuple[str, dict[int, str], list[Entry], int]:
    broker = LoopbackBroker()
    async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
        status = await finished(service, run)
        [(secrets,)] = service.journal._rows("SELECT count(*) FROM releases WHERE length(secret) > 0")
        return status.status, states_of(service.journal, run), service.journal.ledger(run), secrets


@pytest.mark.usefixtures("impatient")
def test_a_power_cut_anywhere_repeats_no_line_and_no_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum whose noise was drawn gets the same noise again; one whose noise was not drawn gets its own."""
    monkeypatch.setattr(_power, "WRITES", (*_power.WRITES, "release"))
    bundle = bundle_of("fedavg", weighting="uniform")
    settings = config(rounds=2, privacy=Privacy(noise=2.0, clip=0.1, population=3, epsilon=50.0))

    async def scenario() -> None:
        with _power.cuts_of(tmp_path / "state", tmp_path) as cuts:
            run = await _undisturbed(bundle, tmp_path / "state", settings)
        journal = Journal(tmp_path / "state" / "journal.db")
        first = states_of(journal, run)
        journal.close()
        same = other = 0
        for cut, state in cuts:
            journal = Journal(state / "journal.db")
            known, row = journal.ledger(run), journal.run(run)
            journal.close()
            if row is None or not ("release" in cut or "commit" in cut):
                continue
            status, states, ledger, secrets = await _gone_on(bundle, state, run)
            assert (cut, status, secrets) == (cut, "done", 0)
            assert [(entry.round, entry.attempt) for entry in ledger] == [(1, 0), (2, 0)]
            assert ledger[: len(known)] == known
            for number in (1, 2):
                drawn = number <= len(known)
                assert (cut, states[number] == first[number]) == (cut, drawn)
                same, other = same + drawn, other + (not drawn)
        assert same > 5
        assert other > 3

    play(scenario())


@pytest.mark.usefixtures("impatient")
def test_the_ledger_is_what_the_accountant_counted(tmp_path: Path) -> None:
    bundle = bundle_of("fedavg")
    privacy = Privacy(noise=2.0, clip=0.1, population=3, epsilon=50.0, quantile=0.5, bits_noise=4.0)

    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with coordinating(broker, state) as service, serving(*honest_fleet(broker, bundle)):
            run = service.start_run(config(rounds=3, privacy=privacy), pack(bundle))
            status = await finished(service, run)
            ledger, results = service.journal.ledger(run), service.journal.results(run)
            account = service.status(run).privacy
        assert status.status == "done"
        assert {result.round for result in results} == {1, 2, 3, 4}  # the last only evaluates, and releases nothing
        assert [entry.round for entry in ledger] == [1, 2, 3]
        assert len({entry.clip for entry in ledger}) == 3  # it moves
        assert ledger[0].clip == pytest.approx(0.1)
        assert account is not None
        assert account.epsilon == accountant.epsilon({Event(2.0): 3}, 1e-5)
        assert msgspec.json.decode(msgspec.json.encode(account), type=type(account)) == account
        assert all(result.metrics == {} for result in results)

    play(scenario())
