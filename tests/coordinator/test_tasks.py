"""What a cohort is told, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from _plans import plan_of

from coordinator import tasks
from coordinator.config import RunConfig
from edgepfl import algorithms, wire
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bus.chunks import digests
from edgepfl.errors import RunError
from edgepfl.seeds import derive
from edgepfl.wire import BlobRef, Member, Task

BUNDLE, DOWNLOAD = BlobRef("b" * 64, 100, chunks=b"b" * 16), BlobRef("d" * 64, 3, b"abc")


def task(config: RunConfig | None = None, number: int = 1, **changed: Any) -> Task:  # noqa: ANN401  tasks.make's own
    plan = plan_of("ditto", lam=0.25)
    given = {
        "attempt": 0,
        "cohort": ("bee", "ant"),
        "accepted": {"ant": 3},
        "algorithm": algorithms.build("ditto", {"lam": 0.5}),
        "config": config or RunConfig(),
        "download": DOWNLOAD,
        **changed,
    }
    return tasks.make(
        "run",
        given.pop("config"),
        given.pop("algorithm"),
        plan,
        number=number,
        bundle=BUNDLE,
        **given,
    )


def test_every_member_is_told_which_of_its_rounds_counted() -> None:
    made = task()
    assert made.cohort == (Member("ant", 3), Member("bee", -1))
    assert (made.run, made.round, made.attempt, made.bundle, made.download) == ("run", 1, 0, BUNDLE, DOWNLOAD)


def test_the_runs_hyperparameters_are_sent() -> None:
    assert task().hyper == {"lr": 0.05, "lam": 0.5, "personal_steps": 0.0}
    assert task(algorithm=algorithms.build("ditto", {"lr": 1})).hyper == {"lr": 1.0, "lam": 0.1, "personal_steps": 0.0}


@pytest.mark.parametrize(
    ("every", "evaluated"), [(1, {1, 2, 3, 4, 5, 6, 7}), (2, {1, 3, 5, 7}), (5, {1, 6, 7}), (0, {7}), (100, {1, 7})]
)
def test_evaluation_comes_every_so_often_and_at_the_end(every: int, evaluated: set[int]) -> None:
    config = RunConfig(rounds=6, evaluate_every=every)
    made = {number: task(config, number) for number in range(1, 8)}
    assert {number for number, each in made.items() if each.evaluate} == evaluated
    assert {number for number, each in made.items() if each.final} == {7}


def test_the_last_round_trains_nothing() -> None:
    config = RunConfig(rounds=6, steps=10)
    assert [tasks.is_final(config, number) for number in (1, 6, 7, 8)] == [False, False, True, True]
    assert [task(config, number).steps for number in (1, 6, 7)] == [10, 10, 0]


def test_a_lease_holds_four_signs_of_life() -> None:
    made = task(RunConfig(lease=20.0, deadline=77.0))
    assert (made.heartbeat, made.deadline) == (5.0, 77.0)
    assert tasks.HEARTBEATS == 4


def test_the_seed_is_the_rounds_and_no_attempts() -> None:
    config = RunConfig(seed=5)
    seeds = [task(config, number, attempt=attempt).seed for number in (1, 2) for attempt in (0, 1)]
    assert seeds == [derive(5, "round", number) for number in (1, 1, 2, 2)]
    assert seeds[0] != seeds[2]


@dataclass(frozen=True)
class Coin(FedAvg):
    def local_steps(self, usual: int, rng: np.random.Generator) -> int:
        return usual + int(rng.integers(1000))


def test_the_servers_coins_fall_the_same_way_again() -> None:
    steps = {number: task(number=number, algorithm=_coin()).steps for number in range(1, 6)}
    assert steps == {number: task(number=number, attempt=2, algorithm=_coin()).steps for number in range(1, 6)}
    assert len(set(steps.values())) > 1


def test_a_round_that_trains_has_a_step_whatever_the_coins_say() -> None:
    @dataclass(frozen=True)
    class Idle(FedAvg):
        def local_steps(self, usual: int, rng: np.random.Generator) -> int:  # noqa: ARG002  the coins' own
            return usual - 10

    config = RunConfig(rounds=2, steps=10)
    assert [tasks.steps_of(config, Idle(), number) for number in (1, 2, 3)] == [1, 1, 0]
    assert tasks.steps_of(RunConfig(steps=14), Idle(), 1) == 4


def test_patience_is_told() -> None:
    assert task(RunConfig(patience=2.5)).patience == 2.5
    assert task().patience == 0


def _coin() -> Any:  # noqa: ANN401  FedAvg's coin with Ditto's hyperparameters
    coin = Coin()
    object.__setattr__(coin, "lam", 0.5)
    object.__setattr__(coin, "personal_steps", 0.0)
    return coin


@pytest.mark.parametrize(("size", "members", "rides"), [(64, 1200, True), (32, 2000, True), (64, 2000, False)])
def test_a_download_rides_in_its_task_beside_the_names(size: int, members: int, rides: bool) -> None:  # noqa: FBT001  a parameter of the test
    data = bytes(range(256)) * (4 * size)
    ref = BlobRef("d" * 64, len(data), data)
    names = tuple(f"{k:036}" for k in range(members))
    made = task(cohort=names, accepted=dict.fromkeys(names, 1 << 31), download=ref)
    assert len(wire.encode(made)) < wire.MESSAGE_LIMIT
    assert (made.download == ref) == rides
    if not rides:
        assert made.download == BlobRef("d" * 64, len(data), chunks=digests(data))
    tasks.check_size(task(cohort=(), download=ref), members)


def test_the_largest_cohort_fits_into_a_message() -> None:
    download = BlobRef("d" * 64, wire.INLINE_LIMIT, bytes(wire.INLINE_LIMIT))
    made = task(RunConfig(goal=2000))
    tasks.check_size(made, 2000)
    names = tuple(f"{k:036}" for k in range(2000))
    accepted = dict.fromkeys(names, 1 << 31)
    full = task(cohort=names, accepted=accepted)
    assert len(wire.encode(full)) < wire.MESSAGE_LIMIT
    assert len(wire.encode(wire.Commit("r" * 45, 1 << 31, names))) < wire.MESSAGE_LIMIT
    large = msgspec.structs.replace(made, download=download, bundle=BlobRef("b" * 64, 1 << 28, chunks=b"b" * 16 * 4096))
    with pytest.raises(RunError, match="would not fit into a message") as caught:
        tasks.check_size(large, 2000)
    assert "fewer devices" in caught.value.remedy
    tasks.check_size(large, 100)
