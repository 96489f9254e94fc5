"""Whole fleets in virtual time: the log to the byte, the model to the bit, whatever goes wrong."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import _virtual
import numpy as np
import pytest

from coordinator.config import RunConfig
from coordinator.journal import Status
from device_agent.runners.onnx import OnnxRunner
from edgepfl.eligibility import Conditions
from edgepfl.errors import ConfigError
from edgepfl.tree import Trees
from simulators.federation import InProcess, Setting
from simulators.profiles import ALWAYS, DAY, Churn, Interval, Life, Presence, Trace, profile
from simulators.virtual import Incident, Settings, Simulated, VirtualDevice, simulate
from simulators.virtual.log import read

NAMES = [f"d{number:03}" for number in range(5)]
CONFIG = RunConfig(rounds=3, steps=4, goal=5, minimum=5, seed=5, canary=0, lease=30.0, attempts=9)
SLOW = _virtual.on_onnx("pi-4")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What services log of the faults that are made here is nobody's news."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def fleet(kind: str = "pi-4") -> dict[str, VirtualDevice]:
    return {name: VirtualDevice(_virtual.examples(number), _virtual.on_onnx(kind)) for number, name in enumerate(NAMES)}


def run(*incidents: Incident, settings: Settings = Settings(), until: float = DAY) -> Simulated:  # noqa: B008  frozen
    return simulate(_virtual.bundle(), CONFIG, fleet(), seed=3, until=until, incidents=incidents, settings=settings)


def equal(one: Trees, two: Trees) -> bool:
    return all(np.array_equal(array, two[slot][name]) for slot, tree in one.items() for name, array in tree.items())


@pytest.fixture(scope="module")
def expected() -> Trees:
    """The server's state after the same rounds without bus, storage and time."""
    bundle = _virtual.bundle()
    federation = InProcess(
        bundle,
        OnnxRunner(bundle),
        {name: _virtual.examples(number) for number, name in enumerate(NAMES)},
        Setting(steps=CONFIG.steps, seed=CONFIG.seed),
    )
    for _ in range(CONFIG.rounds):
        federation.round(NAMES)
    return federation.state


def test_without_faults_the_model_is_that_of_the_federation_in_one_process(expected: Trees) -> None:
    found = run()
    assert found.status.status == Status.DONE
    assert equal(expected, found.state)
    assert {(each.round, each.device) for each in found.results} == {(r, d) for r in range(1, 5) for d in NAMES}
    assert all(cost.seconds > 0 for cost in found.costs.values())


@pytest.mark.parametrize(
    "incident",
    [
        Incident(0.3, "kill", "d002", 20.0),
        Incident(0.3, "cut", "d002"),
        Incident(0.3, "silence", "d002"),
        Incident(0.3, "broker", seconds=10.0),
        Incident(0.3, "coordinator", seconds=10.0),
    ],
    ids=lambda each: each.kind,
)
def test_whatever_dies_in_a_round_the_model_is_the_same(incident: Incident, expected: Trees) -> None:
    settings = Settings(quantum=0.0)
    undisturbed = run(settings=settings)
    first = next(e for e in undisturbed.log if e.what == "committed")
    began = next(e for e in undisturbed.log if e.what == "work")
    at = Incident((began.at + first.at) / 2, incident.kind, incident.device, incident.seconds)
    found = run(at, settings=settings)
    assert any(each.what == f"incident: {incident.kind}" and each.at < first.at for each in found.log)
    assert found.seconds > undisturbed.seconds  # it did cost something
    assert found.status.status == Status.DONE
    assert equal(expected, found.state)


def test_the_log_is_the_golden_one_whatever_the_hash_seed_and_the_directory(tmp_path: Path) -> None:
    """To renew it after a change that is meant: python tests/simulators/_virtual.py tests/golden/virtual/fleet.log"""
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "TMPDIR": str(tmp_path)}
    program = [sys.executable, str(Path(_virtual.__file__)), str(log)]
    subprocess.run(program, env=environment, check=True, capture_output=True)
    assert log.read_bytes() == _virtual.LOG.read_bytes()


def test_the_log_is_the_golden_one_in_this_process_and_another_seed_gives_another(tmp_path: Path) -> None:
    found = _virtual.golden_run(tmp_path / "log", tmp_path / "a directory of another length")
    assert (tmp_path / "log").read_bytes() == _virtual.LOG.read_bytes()
    assert tuple(read(tmp_path / "log")) == found.log
    _virtual.golden_run(tmp_path / "other", seed=_virtual.SEED + 1)
    assert (tmp_path / "other").read_bytes() != _virtual.LOG.read_bytes()


def test_the_golden_log_shows_what_it_is_for() -> None:
    log = read(_virtual.LOG)
    told = {each.what for each in log}
    assert told >= {"selected", "work", "work ends", "report", "accepted", "dropped", "offline", "online", "off", "up"}
    assert told >= {f"incident: {kind}" for kind in ("kill", "cut", "silence", "full", "broker", "coordinator")}
    assert [each.at for each in log] == sorted(each.at for each in log)
    selected = {(each.who, each.round) for each in log if each.what == "selected"}
    fates = [(each.who, each.round) for each in log if each.what in {"accepted", "dropped"}]
    assert set(fates) == selected  # nobody's fate is unknown


def test_fifty_devices_for_a_day_train_only_while_they_charge() -> None:
    devices = _virtual.fleet(50, 24.0, Churn(reboots=0.5, cuts=2.0))
    config = RunConfig(
        rounds=15,
        steps=5,
        goal=5,
        over=1.4,
        minimum=2,
        gather=120.0,
        deadline=900.0,
        lease=120.0,
        seed=1,
        attempts=50,
        conditions=Conditions(charging=True, wifi=True, min_interval=7200.0),
    )
    found = simulate(_virtual.bundle(), config, devices, seed=1, until=DAY)
    rounds = [each for each in found.log if each.what == "committed"]
    assert len(rounds) >= 10
    began = [each for each in found.log if each.what == "work"]
    for each in began:
        life = devices[each.who].life
        assert life is not None
        presence = life.trace.at(each.at)
        assert presence.charging or life.profile.battery_wh is None
    counted = {device: [e.at for e in found.log if (e.who, e.what) == (device, "accepted")] for device in devices}
    assert all(later - earlier > 3600.0 for times in counted.values() for earlier, later in pairwise(times))


def test_a_slower_device_takes_longer_and_says_each_step() -> None:
    devices = {"fast": VirtualDevice(_virtual.examples(0)), "slow": VirtualDevice(_virtual.examples(1), SLOW)}
    config = RunConfig(rounds=1, steps=3, goal=2, minimum=2, seed=1, canary=0, evaluate_every=0)
    found = simulate(_virtual.bundle(), config, devices, settings=Settings(steps=True, quantum=0.0))

    def seconds(name: str) -> float:
        first = [each for each in found.log if each.who == name and each.round == 1]
        times = {each.what: each.at for each in reversed(first) if each.what in {"work", "work ends"}}
        assert [each.detail for each in first if each.what == "step"] == ["1", "2", "3"]
        return times["work ends"] - times["work"]

    assert SLOW.compute_factor > 1
    assert seconds("slow") == pytest.approx(
        seconds("fast") * SLOW.compute_factor, abs=5e-3
    )  # the log has whole milliseconds
    assert profile("host").uplink is None  # the fast one has no link to wait for


def test_what_an_incident_took_its_life_does_not_give_back() -> None:
    used = Presence(online=True, charging=True, wifi=True, idle=False)
    trace = Trace.of([Interval(0, 5, ALWAYS), Interval(5, 6, used), Interval(6, 400, ALWAYS)], 400)
    devices = {
        name: VirtualDevice(_virtual.examples(number), life=Life(profile("host"), trace, Churn(), 1, name))
        for number, name in enumerate(NAMES)
    }
    dead, apart, *others = NAMES
    incidents = (
        Incident(0.0, "kill", dead, 300.0),
        Incident(1.0, "kill", dead, 3.0),
        Incident(0.0, "cut", apart, 300.0),
    )
    config = RunConfig(rounds=2, steps=1, goal=len(others), minimum=len(others), gather=30.0, seed=1)
    found = simulate(_virtual.bundle(), config, devices, until=400.0, incidents=incidents)
    assert found.status.status == Status.DONE
    assert {each.device for each in found.results} == set(others)
    assert not [each for each in found.log if each.what == "hello" and each.who in {dead, apart} and 1 < each.at < 300]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"until": 0.0}, "until"),
        ({"until": 1e9}, "60 days"),
        ({"seed": -1}, "seed"),
        ({"incidents": (Incident(1.0, "kill"),)}, "Name a device"),
        ({"incidents": (Incident(1.0, "broker", "d001"),)}, "Name a device"),
        ({"incidents": (Incident(1.0, "kill", "nobody"),)}, "nobody"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(_virtual.bundle(), CONFIG, fleet(), **change)
