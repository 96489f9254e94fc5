"""The two pure machines against each other: whatever the bus and the power do, every update counts exactly once."""

from __future__ import annotations

from collections import Counter

import pytest
from _coordinator import updated
from _device import trained
from _faulty import CALM, Faults, sha
from _scene import Scene
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.journal import Status

ROUGH = Faults(loss=0.1, repetition=0.1, delay=1.0)
KINDS = {
    "calm": CALM,
    "loss": Faults(loss=0.25, delay=0.1),
    "repetition": Faults(repetition=0.6, delay=0.5),
    "reordering": Faults(delay=6.0),
    "agents without power": Faults(delay=0.5, agent=4.0, cut=0.3),
    "coordinator without power": Faults(delay=0.5, coordinator=9.0),
    "failing tasks": Faults(delay=0.5, failure=0.2, stuck=0.1),
    "everything": Faults(0.1, 0.2, 2.0, agent=15.0, coordinator=20.0, cut=0.1, failure=0.05, stuck=0.02),
}
RUNS = ("old", "new")


def play(faults: Faults, seed: int, **fleet: int) -> tuple[Scene, dict[str, str]]:
    """Two runs, one after the other, and then a network without faults."""
    scene = Scene(faults, seed, **fleet)
    ended = {run: scene.train(run, 4) for run in RUNS}
    scene.heal()
    return scene, ended


def check(scene: Scene, run: str) -> None:
    """What the devices have and what the server has follow from the reports that count, each taken once."""
    journal = scene.coordinator.journal
    results = journal.results(run)
    assert set(Counter((result.round, result.device) for result in results).values()) <= {1}
    state, kept = sha(run), dict.fromkeys(scene.agents, "")
    for number in sorted({result.round for result in results}):
        counted = [result for result in results if result.round == number]
        for result in counted:
            kept[result.device] = trained(kept[result.device], result.device, number, state)
            assert result.kept == kept[result.device]
        state = updated(state, [sha("upload", kept[result.device]) for result in counted])
    assert journal.checkpoint(run).state == state
    accepted = journal.accepted(run)
    for name, agent in scene.agents.items():
        if run in agent.store:
            stored = agent.store[run]
            assert (stored.settled, stored.keep) == (accepted.get(name, -1), kept[name])
            assert stored.pending is None
        else:
            assert name not in accepted


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_every_run_ends_and_every_report_counts_once_on_both_sides(kind: str, seed: int) -> None:
    scene, ended = play(KINDS[kind], seed)
    for run, status in ended.items():
        assert status in {Status.DONE, Status.FAILED}
        check(scene, run)
    if kind in {"calm", "repetition"}:
        assert set(ended.values()) == {Status.DONE}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_with_the_whole_fleet_in_every_round_power_cuts_do_not_change_the_result(seed: int) -> None:
    cuts = Faults(delay=0.5, agent=7.0, coordinator=11.0, cut=0.2)
    digests = set()
    for faults in (CALM, cuts):
        scene, ended = play(faults, seed, devices=3, goal=3, minimum=3)
        assert set(ended.values()) == {Status.DONE}
        journal = scene.coordinator.journal
        kept = tuple(agent.store[run].keep for agent in scene.agents.values() for run in RUNS)
        digests.add((tuple(journal.checkpoint(run).state for run in RUNS), kept))
    assert len(digests) == 1


def test_a_fleet_that_is_gone_fails_the_run_or_leaves_it_waiting_and_never_counts_a_ghost() -> None:
    scene = Scene(Faults(delay=0.5, stuck=1.0), seed=1)
    assert scene.train("old", 2) == Status.FAILED
    assert scene.coordinator.journal.accepted("old") == {}
    scene.heal()
    check(scene, "old")
    assert scene.train("new", 2) == Status.DONE


def test_the_check_notices_a_device_that_trains_from_the_wrong_state() -> None:
    scene, _ = play(ROUGH, seed=3)
    check(scene, "new")
    scene.agents["pi-0"].store["new"].keep = sha("something else")
    with pytest.raises(AssertionError):
        check(scene, "new")
