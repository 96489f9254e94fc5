"""The server's half of the algorithms, from bundle to next state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from _plans import MODEL, model, plan_of, uploads_of

from coordinator import updater
from coordinator.checkpoint import Vault
from coordinator.reduction import Upload
from edgepfl import algorithms, codec
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError, EdgepflError, RunError
from edgepfl.plan import Plan, Role, SlotPlan, TensorSpec, Weighting
from edgepfl.tree import Trees

NAMES = algorithms.names()
ROUNDS = (("ant", "bee"), ("bee", "cat"), ("ant", "bee", "cat"))
"""Their cohorts; cat is new in the second."""


def reduced(algorithm: Algorithm, plan: Plan, number: int, cohort: Iterable[str], device: str = "cpu") -> Cohort:
    """What a round brings in."""
    reduction = updater.reduction(algorithm, plan, cohort, device)
    for place, name in enumerate(cohort):
        reduction.offer(name, Upload(5 + place, 3, lambda name=name: uploads_of(plan, name, number)))  # type: ignore[misc]  # the default binds it now
    return reduction.close(tuple(cohort), number=number, fleet=("ant", "bee"), statistics=plan.statistics)


def started(name: str) -> tuple[Plan, Algorithm, Trees]:
    """An algorithm's plan, and the state before its first round."""
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    return plan, algorithm, updater.first_state(algorithm, plan, model())


def check_download(plan: Plan, download: Trees) -> None:
    """Devices refuse anything but the declared tensors."""
    declared = {name: slot.tensors for name, slot in plan.by_role(Role.DOWN).items()}
    carried = codec.decode(codec.encode(download), declared)
    assert carried.keys() == declared.keys()
    assert all(np.isfinite(tensor).all() for tree in carried.values() for tensor in tree.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_first_download_is_the_initial_model(name: str) -> None:
    plan, algorithm, state = started(name)
    for device in ("ant", "zebra"):
        download = updater.downloads(algorithm, state, device)
        check_download(plan, download)
        sent = [tree for tree in download.values() if tree and tree.keys() <= MODEL.keys()]
        assert any(all(np.array_equal(tree[name], model()[name]) for name in tree) for tree in sent)


def test_what_no_slot_sends_never_leaves_the_bundle() -> None:
    for name in ("fedper", "fedcr"):
        plan, algorithm, state = started(name)
        assert plan.personal == ("head.weight",)
        assert "head.weight" not in {tensor for tree in state.values() for tensor in tree}
        assert set(updater.downloads(algorithm, state, "ant")["body"]) == {"body.bias"}


@pytest.mark.parametrize("name", NAMES)
def test_a_models_dropout_is_no_matter_to_the_coordinator(name: str) -> None:
    plan = plan_of(name)
    dropout = SlotPlan(Role.NOISE, {"000": TensorSpec((4, 3))})
    algorithm = updater.algorithm_of(msgspec.structs.replace(plan, slots={**plan.slots, "dropout": dropout}), {})
    assert isinstance(algorithm, algorithms.load(name))
    kept = msgspec.structs.replace(dropout, role=Role.KEEP)
    with pytest.raises(RunError, match="slots are not this version's"):
        updater.algorithm_of(msgspec.structs.replace(plan, slots={**plan.slots, "dropout": kept}), {})


@pytest.mark.parametrize("name", NAMES)
def test_each_round_gives_a_state_that_can_be_stored_and_sent(name: str, tmp_path: Path) -> None:
    plan, algorithm, state = started(name)
    vault = Vault.at(tmp_path)
    for number, cohort in enumerate(ROUNDS, 1):
        tuned = updater.of_round(algorithm, plan, number=number, seed=7)
        before = {slot: dict(tree.map(torch.clone)) for slot, tree in state.items()}
        got = reduced(tuned, plan, number, cohort)
        after = updater.next_state(tuned, state, got, last=number == len(ROUNDS))
        if name != "fpfc":  # its engine works in place
            assert_same(state, before)
        assert changed(before, after)
        saved = vault.save(algorithm, number, after)
        state = vault.load(algorithm, saved.checkpoint).state
        assert_same(state, after)
        assert (saved.download is None) == updater.addressed(algorithm)
        for device in ("ant", "cat", "zebra"):
            check_download(plan, updater.downloads(algorithm, state, device))


def assert_same(one: Trees, other: Mapping[str, Mapping[str, Any]]) -> None:
    assert one.keys() == other.keys()
    for slot, tree in one.items():
        assert tree.keys() == other[slot].keys()
        for name, tensor in tree.items():
            assert (tensor.dtype, tensor.shape) == (other[slot][name].dtype, other[slot][name].shape)
            assert torch.equal(tensor, other[slot][name])


def changed(before: Mapping[str, Mapping[str, Any]], after: Trees) -> bool:
    return any(
        name not in before[slot] or not torch.equal(tensor, before[slot][name])
        for slot, tree in after.items()
        for name, tensor in tree.items()
    )


@pytest.mark.parametrize("name", ["apfl", "ditto", "fedavg", "fedper", "fedprox"])
def test_the_next_state_adds_the_mean_change(name: str) -> None:
    _, algorithm, state = started(name)
    [(slot, tree)] = state.items()
    delta = tree.map(lambda array: torch.full(array.shape, 0.25))
    after = updater.next_state(algorithm, state, Cohort(("ant",), (5,), (3,), {"delta": delta}, {}))
    for tensor, before in tree.items():
        assert torch.equal(after[slot][tensor], before + 0.25)
        assert isinstance(updater.numpy_of(after)[slot][tensor], np.ndarray)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"fedamp", "fpfc"}])  # they look at values
def test_the_update_happens_where_the_uploads_were_folded(name: str) -> None:
    """The meta device takes no tensor of another one into its arithmetic, as a GPU does not."""
    plan, algorithm, state = started(name)
    got = reduced(algorithm, plan, 1, ROUNDS[0], "meta")
    after = algorithm.update(updater.beside(state, got), got)
    assert after.keys() == state.keys()
    assert {tensor.device.type for tree in after.values() for tensor in tree.values()} == {"meta"}
    if name == "fedavg":
        with pytest.raises(RuntimeError, match="device"):
            algorithm.update(state, got)


def test_a_state_that_is_not_finite_is_never_stored() -> None:
    plan = plan_of("fedavg", server_lr=1e30)
    algorithm = updater.algorithm_of(plan, {})
    state = updater.first_state(algorithm, plan, model())
    delta = state["w"].map(lambda array: torch.full(array.shape, 1e9))
    with pytest.raises(RunError, match=r"the new w/body.bias is not finite"):
        updater.next_state(algorithm, state, Cohort(("ant",), (5,), (3,), {"delta": delta}, {}))
    mild = updater.algorithm_of(plan, {"server_lr": 1.0})
    assert updater.next_state(mild, state, Cohort(("ant",), (5,), (3,), {"delta": delta}, {})).keys() == {"w"}


def test_settings_are_over_the_plans() -> None:
    plan = plan_of("ditto", lam=0.5, lr=0.2)
    algorithm: Any = updater.algorithm_of(plan, {"lam": 0.75, "weighting": "examples"})
    assert (algorithm.lam, algorithm.lr) == (0.75, 0.2)
    assert algorithm.weighting is Weighting.EXAMPLES
    untouched: Any = updater.algorithm_of(plan, {})
    assert (untouched.lam, untouched.weighting) == (0.5, Weighting.UNIFORM)


@pytest.mark.parametrize("same", [0.0, "0", "0.0"])
def test_a_fixed_setting_may_be_repeated_but_not_changed(same: float | str) -> None:
    plan = plan_of("fedavg")
    if same == "0.0":
        with pytest.raises(ConfigError, match="will not do"):
            updater.algorithm_of(plan, {"inner_steps": same})
    else:
        assert updater.algorithm_of(plan, {"inner_steps": same}).inner_steps == 0
    with pytest.raises(ConfigError, match="inner_steps shaped the graphs as 0") as caught:
        updater.algorithm_of(plan, {"inner_steps": 3.0})
    assert "--set inner_steps=3" in caught.value.remedy


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"mu": 1.0}, "no hyperparameter 'mu'"), ({"lr": "fast"}, "will not do"), ({"weighting": "votes"}, "will not do")],
)
def test_a_setting_that_cannot_be(settings: dict[str, float | str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        updater.algorithm_of(plan_of("ditto"), settings)
    assert updater.algorithm_of(plan_of("ditto"), {}).inner_steps == 0


def test_a_bundle_of_another_version_is_refused() -> None:
    plan = plan_of("ditto")
    slots = dict(plan.slots)
    other: list[tuple[Plan, type[EdgepflError]]] = [
        (msgspec.structs.replace(plan, slots={**slots, "v": plan.slots["x"]}), RunError),
        (msgspec.structs.replace(plan, slots={name: slots[name] for name in ("w", "x", "delta")}), RunError),
        (msgspec.structs.replace(plan, slots=plan_of("fedper").slots), RunError),
        (msgspec.structs.replace(plan, algorithm="unheard"), ConfigError),
        (msgspec.structs.replace(plan, hyper={"momentum": 1.0}), ConfigError),
    ]
    for each, kind in other:
        with pytest.raises(kind) as caught:
            updater.algorithm_of(each, {})
        assert caught.value.what


@dataclass(frozen=True)
class Watching(algorithms.load("fedavg")):  # type: ignore[misc]  # a class found by name
    """FedAvg that looks at what it is given."""

    def update(self, state: Any, got: Any) -> Any:  # noqa: ANN401  it stands for the algorithm's own
        assert not torch.is_grad_enabled()
        assert all(isinstance(tensor, torch.Tensor) for tensor in state["w"].values())
        return super().update(state, got)


def test_the_update_sees_torch_and_no_gradients() -> None:
    plan = plan_of("fedavg")
    watching: Algorithm = Watching()
    state = updater.first_state(watching, plan, model())
    delta = state["w"].map(lambda array: torch.zeros(array.shape))
    after = updater.next_state(watching, state, Cohort(("ant",), (5,), (3,), {"delta": delta}, {}))
    assert after["w"].keys() == state["w"].keys()
    assert torch.is_grad_enabled()


def test_hyperparameters_decay_from_the_second_round_on() -> None:
    plan = plan_of("ditto", lr=0.5, lam=0.2)
    algorithm = updater.algorithm_of(plan, {})
    rounds: list[Any] = [updater.of_round(algorithm, plan, number=n, seed=1, decay={"lr": 0.5}) for n in (1, 2, 3)]
    assert [each.lr for each in rounds] == [0.5, 0.25, 0.125]
    assert {each.lam for each in rounds} == {0.2}
    for check in (
        lambda decay: updater.of_round(algorithm, plan, number=1, seed=1, decay=decay),
        lambda decay: updater.check_decay(algorithm, plan, 5, decay),
    ):
        with pytest.raises(ConfigError, match="no runtime hyperparameter 'weighting'") as caught:
            check({"weighting": 0.5})
        assert (caught.value.where, caught.value.remedy) == ("decay", "It has lam, lr, personal_steps")


def test_the_coins_see_what_decay_leaves() -> None:
    """L2SGD's omega of a round is 1 - (1 - lr lam / p)^heads with the round's own lr."""
    plan = plan_of("l2sgd", lr=0.4, lam=0.25, p=0.5)
    algorithm = updater.algorithm_of(plan, {})
    heads = []
    for number in range(1, 30):
        plain: Any = updater.of_round(algorithm, plan, number=number, seed=3)
        left: Any = updater.of_round(algorithm, plan, number=number, seed=3, decay={"lr": 0.5})
        share = 0.4 * 0.5 ** (number - 1) * 0.25 / 0.5
        heads.append(round(math.log(1 - plain.omega) / math.log(1 - 0.2)))
        assert left.omega == pytest.approx(1 - (1 - share) ** heads[-1], rel=1e-6)
        assert plain.omega == updater.of_round(algorithm, plan, number=number, seed=3).omega  # type: ignore[attr-defined]  # L2SGD's
    assert set(heads) >= {1, 2}


@pytest.mark.parametrize(
    ("name", "decay", "rounds", "reason"),
    [
        ("scaffold", {"lr": 0.5}, 2000, "in round 2001, lr = 0.0"),
        ("scaffold", {"lr": 0.5}, 150, "in round 151, lr = 0.0"),  # a number, and not one that float32 can hold
        ("fedavg", {"lr": 2.0}, 140, "in round 141, a hyperparameter is greater"),
        ("fedavg", {"lr": 10.0}, 400, "in round 401, a hyperparameter is greater"),  # greater than float64 can hold
        ("l2sgd", {"lam": 1.5}, 20, "in round 21, a step towards the mean would go past it"),
    ],
)
def test_decay_that_ends_where_the_algorithm_cannot_go(
    name: str, decay: dict[str, float], rounds: int, reason: str
) -> None:
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    with pytest.raises(ConfigError, match=reason) as caught:
        updater.check_decay(algorithm, plan, rounds, decay)
    assert caught.value.where == "decay"
    updater.check_decay(algorithm, plan, 3, decay)
    updater.check_decay(algorithm, plan, rounds, {})


def test_what_is_done_once_at_the_end_is_done_after_the_last_update() -> None:
    plan = plan_of("fpfc", finalize="cluster_mean", lam=5.0)
    algorithm = updater.algorithm_of(plan, {})
    state = updater.first_state(algorithm, plan, model())
    got = reduced(algorithm, plan, 1, ROUNDS[0])
    plain = updater.next_state(algorithm, state, got)
    last = updater.next_state(algorithm, state, got, last=True)
    assert (float(plain["final"].value), float(last["final"].value)) == (0.0, 1.0)
    assert (set(plain["mean"]), set(last["mean"])) == (set(), {"ant", "bee"})
    assert plain.keys() - {"final", "mean"} == last.keys() - {"final", "mean"}


def test_a_slot_starts_filled_where_the_algorithm_does_not_give_it() -> None:
    plan, algorithm, state = started("fedcr")
    filled = {name: set(state[name].value.ravel().tolist()) for name in ("mu_g", "sigma_g")}
    assert filled == {"mu_g": {0.0}, "sigma_g": {1.0}}
    assert state["mu_g"].value.shape == (plan.dims["classes"], plan.dims["width"]) == (3, 2)
    assert algorithm.init(model().like(["body.bias"])).keys() == {"body"}
