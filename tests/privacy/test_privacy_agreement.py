"""Which runs can be private, and which are refused, with the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from _plans import model, plan_of, uploads_of
from test_privacy_clipping import ALLOWED

from coordinator import updater
from coordinator.config import RunConfig
from coordinator.privacy import agreement
from coordinator.privacy.config import Accountant, Privacy, Sampling, Trust
from coordinator.privacy.events import Event
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Role, TensorSpec, Weighting
from edgepfl.tree import Tree, Trees

EVERYONE = Privacy(noise=5.0, population=100)
SAMPLED = Privacy(noise=5.0, population=1000, fraction=0.1)


def check(name: str = "fedavg", privacy: Privacy = EVERYONE, hubs: tuple[str, ...] = (), **fields: Any) -> None:  # noqa: ANN401  whatever RunConfig takes
    plan = plan_of(name)
    config = RunConfig(**{"goal": 200, "minimum": 1, "rounds": 5, "privacy": privacy, **fields})
    agreement.check(updater.algorithm_of(plan, {}), plan, config, hubs)


def test_which_algorithms_can_be_private() -> None:
    able = []
    for name in algorithms.names():
        try:
            check(name)
        except ConfigError:
            continue
        able.append(name)
    assert tuple(able) == ALLOWED


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fpfc", "needs each device's own fused, and only a noisy sum is private"),
        ("fedamp", "needs each device's own trained"),
        ("scaffold", "knows the sum of the devices' own c_k"),
        ("feddyn", "own g, and noise would part the two"),
        ("fedsplit", "own z, and noise"),
        ("fedcr", "precision and present and shift, which is no change"),
    ],
)
def test_the_others_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(name)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"robust": "median"}, "change what median gives by more"),
        ({"codec": "topk:0.1"}, "leaves out of one contribution it adds to the next"),
        ({"buffer": 2}, "nobody is sampled"),
        ({"over": 1.3}, "come first, and are no sample"),
        ({"exact": True}, "not clipped device by device"),
        ({"hubs": ("hall",)}, "not clipped device by device"),
        ({"secagg": True, "privacy": Privacy(noise=5.0, population=100, quantile=0.5)}, "nobody does"),
        ({"privacy": Privacy(noise=50.0, population=100, quantile=0.5, trust=Trust.LOCAL)}, "hides the norms"),
        ({"privacy": Privacy(noise=5.0, sampling=Sampling.FIXED, accountant=Accountant.PLD)}, "fixed size"),
        ({"privacy": Privacy(noise=5.0)}, "population is not given"),
        ({"privacy": Privacy(noise=0.1, population=100)}, "one round with noise 0.1 spends more than epsilon 8"),
        ({"privacy": Privacy(noise=0.0, population=100)}, "one round with noise 0 spends more"),
        ({"privacy": SAMPLED, "goal": 120}, r"more than 120 \(goal\) with a probability of 0.0"),
        ({"privacy": SAMPLED, "minimum": 80, "goal": 200}, r"fewer than 80 \(minimum\)"),
        ({"privacy": Privacy(noise=5.0, population=20, fraction=0.1)}, "a Poisson sample of 0.1 has fewer than 1"),
        ({"privacy": Privacy(noise=5.0, population=100, quantile=0.5, bits_noise=2.0)}, "bits with noise 2 tell more"),
    ],
)
def test_settings_are_refused_with_the_reason(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(**fields)


def test_a_remedy_works() -> None:
    with pytest.raises(ConfigError) as found:
        check(privacy=SAMPLED, goal=120)
    remedy = found.value.remedy
    assert remedy.startswith("Set goal to 1")
    goal = int(remedy.split()[3])
    check(privacy=SAMPLED, goal=goal)
    with pytest.raises(ConfigError) as found:
        check(privacy=Privacy(noise=0.1, population=100), rounds=30)
    needed = float(found.value.remedy.split()[2].rstrip(","))
    check(privacy=Privacy(noise=needed, population=100), rounds=30)


def test_rounding_codecs_and_fixed_samples_are_allowed() -> None:
    check(codec="int8+zlib")
    check(privacy=Privacy(noise=40.0, sampling=Sampling.FIXED))
    check(privacy=Privacy(noise=40.0, population=100, trust=Trust.LOCAL))


def test_running_statistics_cannot_be_noised() -> None:
    plan = plan_of("fedavg")
    algorithm = updater.algorithm_of(plan, {})
    config = RunConfig(goal=200, privacy=EVERYONE)
    noisy = _with_statistics(plan)
    with pytest.raises(ConfigError, match=r"body.bias is a running statistic.*--personal"):
        agreement.check(algorithm, noisy, config, ())


def _with_statistics(plan: Plan) -> Plan:
    import msgspec  # noqa: PLC0415  for this alone

    return msgspec.structs.replace(plan, statistics=("body.bias",))


def test_aggregators_are_refused() -> None:
    agreement.check_aggregated(RunConfig())
    with pytest.raises(ConfigError, match="without clipping or noise"):
        agreement.check_aggregated(RunConfig(privacy=EVERYONE))


def test_every_device_weighs_the_same() -> None:
    algorithm = updater.algorithm_of(plan_of("fedavg"), {})
    assert algorithm.weighting is Weighting.EXAMPLES
    assert agreement.tailored(algorithm, RunConfig(privacy=EVERYONE)).weighting is Weighting.UNIFORM
    assert agreement.tailored(algorithm, RunConfig()) is algorithm


def test_what_a_round_releases() -> None:
    assert agreement.event_of(SAMPLED, sample=1, source=2) == Event(5.0, fraction=0.1)
    fixed = Privacy(noise=5.0, sampling=Sampling.FIXED)
    assert agreement.event_of(fixed, sample=10, source=50) == Event(5.0, sample=10, source=50, replaced=True)
    local = Privacy(noise=5.0, trust=Trust.LOCAL)
    assert agreement.event_of(local, sample=10, source=50) == Event(5.0, replaced=True)
    assert Event(5.0, replaced=True).multiplier == 2.5


# What an algorithm says of itself.


def trees_of(plan: Plan, role: Role, fill: float) -> Trees:
    return {
        name: Tree({key: torch.full(spec.shape, fill, dtype=torch.float64) for key, spec in slot.tensors.items()})
        for name, slot in plan.by_role(role).items()
    }


@pytest.mark.parametrize("name", algorithms.names())
def test_a_change_is_zero_where_nothing_was_learnt(name: str) -> None:
    """A device that took no step, from its first state, sends 0 in every slot that is declared to be a change."""
    plan = plan_of(name)
    algorithm = algorithms.build(name, {})
    scalars = {"steps": 0.0, "examples": 5.0, "planned": 4.0, "epoch": 2.0}
    slots: dict[str, Tree] = {}
    for slot, declared in plan.slots.items():
        if declared.role in {Role.DOWN, Role.KEEP, Role.WORK}:
            first = 0.0 if declared.first == 0 else 0.5
            slots[slot] = trees_of(plan, declared.role, first)[slot]
        elif declared.role is Role.GIVEN:
            slots[slot] = Tree.scalar(torch.tensor(scalars[slot], dtype=torch.float64))
    hyper = {field: torch.tensor(float(getattr(algorithm, field)), dtype=torch.float64) for field in plan.hyper}
    traced: Algorithm = dataclasses.replace(algorithm, **hyper)  # type: ignore[arg-type]  # as a trace has them
    slots |= traced.begin(slots)
    sent = traced.finish(slots)
    for slot, each in algorithm.declared().items():
        if each.role is Role.UP and each.change:
            assert all(float(tensor.abs().max()) < 1e-12 for tensor in sent[slot].values()), slot
        elif each.role is Role.UP:
            assert name in {"fedamp", "fpfc", "fedcr"}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_server_that_may_be_private_reckons_with_sums_alone(name: str) -> None:
    plan = plan_of(name)
    algorithm = updater.algorithm_of(plan, {})
    total = updater.torch_of({slot: tree.map(np.float64) for slot, tree in uploads_of(plan, "ant", 1).items()})
    state = updater.first_state(algorithm, plan, model())
    one = algorithm.update(state, Cohort((), (), (), total, {}))
    two = algorithm.update(state, Cohort(("ant", "bee"), (5, 900), (1, 30), total, {}, 7, ("ant", "bee", "cat")))
    for slot, tree in one.items():
        for key, tensor in tree.items():
            assert torch.equal(tensor, two[slot][key])


def test_it_is_the_plans_tensors_that_matter() -> None:
    assert plan_of("fedper").by_role(Role.UP)["delta"].tensors == {"body.bias": TensorSpec((2,))}
