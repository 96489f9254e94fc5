"""Server optimisers against NumPy, at their limits, and on every algorithm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from _plans import model, plan_of, uploads_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from coordinator import optimisers, updater
from coordinator.optimisers import Kind, Server, optimiser_of
from coordinator.reduction import Upload
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan
from edgepfl.tree import Tree, Trees

Array = NDArray[np.float64]
CHANGES = st.lists(
    arrays.arrays(np.float64, 3, elements=st.floats(-10, 10, allow_subnormal=False)), min_size=1, max_size=6
)
TAKE = {
    "apfl": ("delta",),
    "ditto": ("delta",),
    "fedavg": ("delta",),
    "fedcr": ("delta",),
    "fedem": ("delta0", "delta1", "delta2"),
    "fedper": ("delta",),
    "fedprox": ("delta",),
    "l2sgd": ("delta",),
    "perfedavg": ("delta",),
    "pfedbred": ("delta",),
    "pfedmac": ("delta",),
    "pfedme": ("delta",),
    "scaffold": ("delta",),
}
REFUSE = {
    "fedamp": "adds no mean",
    "feddc": "moves h_sum and w at once",
    "feddr": "adds no mean",
    "feddyn": "moves g_sum and mean and w at once",
    "fedsplit": "being their mean",
    "proxskip": "being their mean",
}


def published(words: str, changes: list[Array]) -> list[Array]:
    """Algorithm 2 of Reddi et al. 2021, with the defaults; the steps."""
    kind, lr, beta1, beta2, tau = words, 0.1, 0.9, 0.99, 1e-3
    m, v, steps = np.zeros(3), np.full(3, tau**2), []
    for change in changes:
        match kind:
            case "momentum":
                m = 0.9 * m + change
                steps.append(m)
                continue
            case "fedadagrad":
                m, v = change, v + change**2  # its beta1 is 0
            case "fedyogi":
                m = beta1 * m + (1 - beta1) * change
                v = v - (1 - beta2) * change**2 * np.sign(v - change**2)
            case "fedadam":
                m = beta1 * m + (1 - beta1) * change
                v = beta2 * v + (1 - beta2) * change**2
        steps.append(lr * m / (np.sqrt(v) + tau))
    return steps


@pytest.mark.parametrize("words", ["momentum", "fedadagrad", "fedyogi", "fedadam"])
@given(changes=CHANGES)
def test_they_are_what_the_paper_says(words: str, changes: list[Array]) -> None:
    server = Server(some(words), ("delta",))
    state: Trees = {"w": Tree({"a": torch.zeros(3, dtype=torch.float64)})}
    for change, wanted in zip(changes, published(words, changes), strict=True):
        got = Cohort(("ant",), (1,), (1,), {"delta": Tree({"a": torch.tensor(change)})}, {})
        stepped, memory = server.stepped(state, got)
        np.testing.assert_allclose(stepped.total["delta"]["a"], wanted, rtol=1e-9, atol=1e-12)
        state = {**state, **memory}
    assert state.keys() - {"w"} == ({"opt.m.delta"} if words == "momentum" else {"opt.m.delta", "opt.v.delta"})


def some(words: str) -> optimisers.Optimiser:
    found = optimiser_of(words)
    assert found is not None
    return found


def test_the_square_never_falls_below_nothing_in_yogi() -> None:
    """Where a change is much greater than before, v grows to it and no further; where it is 0, v stays."""
    tree = {"v": Tree.scalar(torch.tensor([4.0, 4.0])), "m": Tree.scalar(torch.zeros(2))}
    _, after = some("fedyogi:beta2=0.5").step(Tree.scalar(torch.tensor([0.0, 10.0])), tree)
    assert after["v"].value.tolist() == [4.0, 54.0]
    _, adam = some("fedadam:beta2=0.5").step(Tree.scalar(torch.tensor([0.0, 10.0])), tree)
    assert adam["v"].value.tolist() == [2.0, 52.0]


def started(name: str, words: str) -> tuple[Plan, Algorithm, Trees, Server | None]:
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    return plan, algorithm, updater.first_state(algorithm, plan, model()), updater.server_of(algorithm, plan, words)


def played(name: str, words: str, *, statistics: tuple[str, ...] = (), rounds: int = 3) -> Trees:
    """Three rounds of two devices."""
    plan, algorithm, state, server = started(name, words)
    for number in range(1, rounds + 1):
        reduction = updater.reduction(algorithm, plan, ("ant", "bee"))
        for device in ("ant", "bee"):
            load = functools.partial(uploads_of, plan, device, number)
            reduction.offer(device, Upload(5, 3, load))
        got = reduction.close(("ant", "bee"), number=number, fleet=("ant", "bee"), statistics=statistics)
        state = updater.next_state(algorithm, state, got, last=number == rounds, server=server)
    return state


def assert_same(one: Trees, other: Trees) -> None:
    assert one.keys() == other.keys()
    for slot, tree in one.items():
        assert tree.keys() == other[slot].keys()
        assert all(torch.equal(tensor, other[slot][key]) for key, tensor in tree.items())


@pytest.mark.parametrize("name", TAKE)
def test_sgd_with_step_1_is_the_algorithm_bit_for_bit(name: str) -> None:
    assert_same(played(name, "sgd"), played(name, ""))
    assert_same(played(name, "sgd:lr=1"), played(name, ""))
    half = played(name, "sgd:lr=0.5")
    assert any(not torch.equal(x, half[slot][key]) for slot, t in played(name, "").items() for key, x in t.items())


@pytest.mark.parametrize("name", TAKE)
def test_momentum_without_memory_is_the_algorithm(name: str) -> None:
    found = played(name, "momentum:beta1=0")
    assert_same(optimisers.apart(found), played(name, ""))
    assert {slot for slot in found if slot.startswith("opt.")} == {f"opt.m.{slot}" for slot in TAKE[name]}


@pytest.mark.parametrize("name", TAKE)
def test_the_slots_whose_means_are_added_are_found(name: str) -> None:
    _, _, _, server = started(name, "fedadam")
    assert server is not None
    assert server.slots == TAKE[name]
    state = played(name, "fedadam")
    plain = played(name, "")
    moved = {slot for slot in plain if any(not torch.equal(x, state[slot][key]) for key, x in plain[slot].items())}
    assert len(moved) == len(TAKE[name])  # each moves one slot, and nothing else differs


@pytest.mark.parametrize(("name", "reason"), REFUSE.items())
def test_an_algorithm_that_adds_no_mean_or_needs_it_elsewhere_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        started(name, "fedadam")
    assert caught.value.where == "server_optimizer"
    assert started(name, "")[3] is None


def test_every_algorithm_was_thought_of() -> None:
    assert {*TAKE, *REFUSE, "fpfc"} == set(algorithms.names())


def test_what_is_fused_as_a_whole_leaves_no_mean() -> None:
    with pytest.raises(ConfigError, match="adds no mean"):
        started("fpfc", "fedadam")


def test_running_statistics_are_added_as_they_are() -> None:
    plain, found = (played("fedavg", words, statistics=("body.bias",)) for words in ("", "fedadam"))
    assert torch.equal(plain["w"]["body.bias"], found["w"]["body.bias"])
    assert not torch.equal(plain["w"]["head.weight"], found["w"]["head.weight"])
    assert set(found["opt.m.delta"]) == set(found["opt.v.delta"]) == {"head.weight"}


def test_the_optimisers_slots_are_neither_sent_nor_in_the_algorithms_way() -> None:
    plan, algorithm, _, _ = started("fedavg", "fedadam")
    state = played("fedavg", "fedadam")
    assert updater.downloads(algorithm, state, "ant").keys() == {"w"}
    assert all(not name.isidentifier() for name in state if name.startswith("opt."))
    assert plan.slots.keys().isdisjoint(state.keys() - {"w"})


WRONG: Mapping[str, str] = {
    "adam": "there is no 'adam'",
    "fedadam:gamma=1": "fedadam has lr, beta1, beta2, tau",
    "momentum:tau=1": "momentum has lr, beta1",
    "sgd:beta1=0.5": "sgd has lr",
    "fedadam:lr": "lr = '' is no number",
    "fedadam:lr=fast": "lr = 'fast' is no number",
    "fedadam:lr=0": "lr must be finite, above 0",
    "fedadam:tau=-1": "tau must be finite, above 0",
    "fedadam:beta1=1": "beta1 must be at least 0 and below 1",
    "fedadam:beta2=nan": "beta2 must be",
    "fedadam:lr=inf": "lr must be",
}


@pytest.mark.parametrize(("words", "reason"), WRONG.items())
def test_words_that_name_no_optimiser(words: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        optimiser_of(words)


def test_words_set_what_they_name() -> None:
    found: Any = optimiser_of("fedadam:lr=0.5,beta1=0.8,beta2=0.7,tau=0.01")
    assert (found.kind, found.lr, found.beta1, found.beta2, found.tau) == (Kind.ADAM, 0.5, 0.8, 0.7, 0.01)
    assert optimiser_of("") is None
    assert all(optimiser_of(kind) is not None for kind in Kind)


def test_a_plan_is_thinned_for_the_trial() -> None:
    """A model of a hundred million numbers would take seconds otherwise."""
    plan = plan_of("fedcr")
    wide = {name: msgspec.structs.replace(spec, shape=(1 << 20, 100)) for name, spec in plan.model.items()}
    slots = {
        name: msgspec.structs.replace(slot, tensors={k: wide.get(k, spec) for k, spec in slot.tensors.items()})
        for name, slot in plan.slots.items()
    }
    huge = msgspec.structs.replace(plan, model=wide, slots=slots)
    algorithm = algorithms.build("fedcr", {})
    assert optimisers.added(algorithm, huge, functools.partial(updater.first_state, algorithm)) == ("delta",)
