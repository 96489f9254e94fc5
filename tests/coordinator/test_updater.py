"""The server's half of the five algorithms, from bundle to next state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from _plans import MODEL, plan_of

from coordinator import updater
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError, EdgepflError, RunError
from edgepfl.plan import Plan, Role, SlotPlan, TensorSpec, Weighting
from edgepfl.tree import Tree

FIVE = ("apfl", "ditto", "fedavg", "fedper", "fedprox")


def model() -> Tree:
    source = np.random.default_rng(1)
    return Tree({name: source.standard_normal(spec.shape).astype(np.float32) for name, spec in MODEL.items()})


@pytest.mark.parametrize("name", FIVE)
def test_the_first_state_is_the_shared_part_of_the_model(name: str) -> None:
    plan, start = plan_of(name), model()
    algorithm = updater.algorithm_of(plan, {})
    state = updater.first_state(algorithm, plan, start)
    slot, shared = ("body", {"body.bias"}) if name == "fedper" else ("w", set(MODEL))
    assert state.keys() == {slot}
    assert set(state[slot]) == shared  # FedPer's head never leaves the bundle
    assert all(np.array_equal(state[slot][tensor], start[tensor]) for tensor in shared)
    down = updater.downloads(algorithm, state, "any")
    assert {tensor for tree in down.values() for tensor in tree} == shared


@pytest.mark.parametrize("name", FIVE)
def test_a_models_dropout_is_no_matter_to_the_coordinator(name: str) -> None:
    plan = plan_of(name)
    dropout = SlotPlan(Role.NOISE, {"000": TensorSpec((4, 3))})
    algorithm = updater.algorithm_of(msgspec.structs.replace(plan, slots={**plan.slots, "dropout": dropout}), {})
    assert updater.first_state(algorithm, plan, model()).keys() == algorithm.send(algorithm.init(model()), "any").keys()
    kept = msgspec.structs.replace(dropout, role=Role.KEEP)
    with pytest.raises(RunError, match="slots are not this version's"):
        updater.algorithm_of(msgspec.structs.replace(plan, slots={**plan.slots, "dropout": kept}), {})


@pytest.mark.parametrize("name", FIVE)
def test_the_next_state_adds_the_mean_change(name: str) -> None:
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    state = updater.first_state(algorithm, plan, model())
    [(slot, tree)] = state.items()
    delta = tree.map(lambda array: torch.full(array.shape, 0.25))
    after = updater.next_state(algorithm, state, Cohort(("ant",), (5,), (3,), {"delta": delta}, {}))
    for tensor, before in tree.items():
        assert np.array_equal(after[slot][tensor], before + np.float32(0.25))
        assert isinstance(after[slot][tensor], np.ndarray)
        assert np.array_equal(before, model()[tensor])  # the old state is untouched


@pytest.mark.parametrize("name", FIVE)
def test_the_update_happens_where_the_uploads_were_folded(name: str) -> None:
    """The meta device takes no tensor of another one into its arithmetic, as a GPU does not."""
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    state = updater.first_state(algorithm, plan, model())
    [tree] = state.values()
    delta = tree.map(lambda array: torch.empty(array.shape, device="meta"))
    got = Cohort(("ant",), (5,), (3,), {"delta": delta}, {})
    after = algorithm.update(updater.beside(state, got), got)
    assert {tensor.device.type for tree in after.values() for tensor in tree.values()} == {"meta"}
    with pytest.raises(RuntimeError, match="device"):
        algorithm.update({slot: tree.map(torch.from_numpy) for slot, tree in state.items()}, got)


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
