"""What every algorithm keeps to, whichever it is: found by file, so a new one is tested without an edit here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from _driver import Federation, schedule
from _problems import Batch, flat
from _represented import DIMS, Represented

from edgepfl import algorithms, codec
from edgepfl.algorithms import hyperparameters
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry, Role, Weighting
from edgepfl.tree import Tree

EVERY = algorithms.names()
PROBLEM = Represented(4)  # which has all that an algorithm may ask of a model


def federation_of(name: str) -> Federation:
    return Federation(algorithms.build(name, {}), PROBLEM, PROBLEM.personal, DIMS)


def minibatches(device: str, seed: int = 5) -> Sequence[Batch]:
    (draws,) = schedule(PROBLEM, rounds=1, share=1.0, seed=seed)
    return [PROBLEM.batch(device, draw) for draw in draws[device]]


def float32(trees: dict[str, Tree]) -> dict[str, Tree]:
    """As they would leave a device."""
    return {name: tree.map(lambda tensor: tensor.detach().numpy().astype(np.float32)) for name, tree in trees.items()}


@pytest.mark.parametrize("name", EVERY)
def test_no_keep_slot_is_in_what_a_device_uploads(name: str) -> None:
    federation = federation_of(name)
    device = "pi-1"
    federation.train(device, minibatches(device, seed=6))
    before = federation.kept[device]
    uploads = dict(federation.train(device, minibatches(device)))
    told = np.array(list(federation.told[device].values()), np.float32)
    sent = codec.encode(float32(uploads)) + told.tobytes()
    kept = {slot for slot, plan in federation.slots.items() if plan.role is Role.KEEP}
    assert not uploads.keys() & kept
    revealed = set(federation.algorithm.revealed)
    own = {slot: tree for slot, tree in federation.kept[device].items() if slot not in revealed}
    assert federation.kept[device].keys() == before.keys() == own.keys() | revealed == kept
    for personal in (before, own):
        for tree in float32(personal).values():
            assert not any(np.any(tensor) and tensor.tobytes() in sent for tensor in tree.values())
    storages = {tensor.data_ptr() for tree in own.values() for tensor in tree.values()}
    assert not storages & {tensor.data_ptr() for tree in uploads.values() for tensor in tree.values()}
    for slot in revealed:  # says so, and is so
        assert all(tensor.tobytes() in sent for tensor in float32(federation.kept[device])[slot].values())


@pytest.mark.parametrize("name", EVERY)
def test_each_function_writes_only_the_slots_of_its_place(name: str) -> None:
    federation = federation_of(name)
    algorithm, device = federation.algorithm, "pi-1"
    role = {slot: plan.role for slot, plan in federation.slots.items()}
    s = dict(federation.opening(device))
    begun = algorithm.begin(s)
    s |= begun
    (b, *_) = minibatches(device)
    s |= federation._noise(device, 0)
    prepared = algorithm.prepare(s, b)
    s |= prepared
    inner, stepped, tuned = algorithm.inner(s, b), algorithm.step(s, b), algorithm.tune(s, b)
    s |= inner
    s |= stepped
    finished = algorithm.finish(s)
    assert {role[slot] for slot in begun} <= {Role.WORK}
    assert {role[slot] for slot in [*prepared, *inner, *stepped, *tuned]} <= {Role.WORK, Role.KEEP}
    assert {role[slot] for slot in finished} <= {Role.UP, Role.KEEP, Role.TELL}
    assert {slot for slot in role if role[slot] in {Role.UP, Role.TELL}} <= finished.keys()
    for slot, tree in (s | dict(finished)).items():
        shapes = {tensor: spec.shape for tensor, spec in federation.slots[slot].tensors.items()}
        assert {tensor: tuple(value.shape) for tensor, value in tree.items()} == shapes


@pytest.mark.parametrize("name", EVERY)
def test_a_round_changes_no_tensor_in_place(name: str) -> None:
    federation = federation_of(name)
    state = {slot: tree.map(torch.clone) for slot, tree in federation.state.items()}
    held = federation.state
    for draws in schedule(PROBLEM, rounds=2):
        federation.round(draws)
    assert any(not np.array_equal(flat(state[slot]), flat(federation.state[slot])) for slot in state)
    for slot, tree in state.items():
        np.testing.assert_array_equal(flat(held[slot]), flat(tree))


@pytest.mark.parametrize("name", EVERY)
def test_the_server_sends_every_down_slot_and_keeps_its_shapes(name: str) -> None:
    federation = federation_of(name)
    declared = {slot: plan.tensors for slot, plan in federation.slots.items() if plan.role is Role.DOWN}
    for draws in schedule(PROBLEM, rounds=2):
        sent = federation.algorithm.send(federation.state, "pi-0")
        assert sent.keys() == declared.keys()
        for slot, specs in declared.items():
            shapes = {tensor: tuple(value.shape) for tensor, value in sent[slot].items()}
            assert shapes == {tensor: spec.shape for tensor, spec in specs.items()}
        federation.round(draws)


@pytest.mark.parametrize("name", EVERY)
def test_every_hyperparameter_has_a_role_and_a_default_that_builds(name: str) -> None:
    kind = algorithms.load(name)
    roles = hyperparameters(kind)
    assert set(roles.values()) <= {"runtime", "fixed", "server"}
    assert roles["weighting"] == "server"
    assert roles["inner_steps"] == "fixed"
    defaults = {key: getattr(kind(), key) for key in roles}
    assert algorithms.build(name, defaults) == kind()
    assert algorithms.build(name, {key: str(value) for key, value in defaults.items()}) == kind()


@pytest.mark.parametrize("name", EVERY)
def test_the_docstring_names_its_paper_and_its_hyperparameters(name: str) -> None:
    kind = algorithms.load(name)
    paper = importlib.import_module(kind.__module__).__doc__
    assert paper is not None
    assert " et al. 20" in paper
    own = hyperparameters(kind).keys() - {"inner_steps", "weighting"}
    assert all(f"    {key}: " in (kind.__doc__ or "") for key in own)


def test_the_five_are_there_and_others_are_refused() -> None:
    assert set(EVERY) >= {"apfl", "ditto", "fedavg", "fedper", "fedprox"}
    with pytest.raises(ConfigError, match=r"there is no algorithm 'nothing'.*Choose one of .*ditto"):
        algorithms.load("nothing")
    with pytest.raises(ConfigError, match="there is no algorithm '_base'"):
        algorithms.load("_base")
    with pytest.raises(ConfigError, match="ditto has no hyperparameter 'mu'"):
        algorithms.build("ditto", {"mu": 1.0})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inner_steps", "two"),
        ("inner_steps", 2.5),
        ("inner_steps", float("inf")),
        ("lr", "fast"),
        ("lr", "nan"),
        ("lr", float("inf")),
        ("weighting", "loud"),
    ],
)
def test_a_value_that_will_not_do_names_its_setting(key: str, value: str | float) -> None:
    with pytest.raises(ConfigError) as caught:
        algorithms.build("ditto", {key: value})
    assert caught.value.where == f"ditto.{key}"
    assert "will not do" in caught.value.what


def test_values_arrive_as_the_types_of_their_defaults() -> None:
    built = algorithms.build("fedavg", {"lr": "0.5", "inner_steps": "3", "weighting": "uniform", "server_lr": 2})
    assert (built.inner_steps, built.weighting) == (3, Weighting.UNIFORM)
    assert getattr(built, "lr") == 0.5  # noqa: B009  the base class has no lr
    assert isinstance(getattr(built, "server_lr"), float)  # noqa: B009  likewise


def test_only_what_an_algorithm_defines_becomes_a_graph() -> None:
    fedavg, fedprox = algorithms.load("fedavg"), algorithms.load("fedprox")
    assert algorithms.has(fedavg, Entry.TUNE)
    assert not algorithms.has(fedprox, Entry.TUNE)
    assert not any(algorithms.has(algorithms.load(name), Entry.INNER) for name in ("fedavg", "ditto", "apfl"))
    assert all(algorithms.has(fedprox, entry) for entry in (Entry.BEGIN, Entry.STEP, Entry.FINISH, Entry.PREDICT))
