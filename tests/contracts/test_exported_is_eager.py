"""The exported graphs in the real runtime against the same algorithm run eagerly by torch."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from _exported import DEVICES, EVERY, Exported, exported
from _federation import Federation, assert_near, differ, eager

from coordinator import updater
from edgepfl.algorithms import Algorithm, hyperparameters, load
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, PlanError
from edgepfl.plan import Role
from exporters.binding import Binding
from exporters.eager import EagerRunner
from exporters.entries import Values as Tensors
from exporters.entries import entry_functions
from simulators.federation import Values

SCALARS = [
    (name, scalar) for name in EVERY for scalar, role in hyperparameters(load(name)).items() if role == "runtime"
]


class FieldBinding(Binding):
    """The algorithm's own fields, Python numbers, in place of what the graphs are fed."""

    def tuned(self, values: Tensors) -> Algorithm:  # noqa: ARG002  not reading them is the point
        return self.algorithm


def of_fields(subject: Exported, settings: updater.Settings) -> Values:
    """Three rounds and an evaluation by an eager instance whose fields are ``settings``; nothing is fed."""
    bundle = subject.bundle
    instance = updater.algorithm_of(bundle.plan, settings)
    binding = FieldBinding(instance, subject.model)
    runner = EagerRunner(instance, subject.model)
    runner.functions = entry_functions(binding)
    own = Bundle(msgspec.structs.replace(bundle.plan, hyper=binding.hyper), bundle.model, bundle.graphs, bundle.golden)
    federation = Federation(dataclasses.replace(subject, bundle=own), settings, runner=runner)
    federation.hyper = {}
    return federation.run().everything()


@pytest.mark.parametrize("name", EVERY)
def test_three_rounds_and_their_evaluation_are_those_of_eager_torch(name: str) -> None:
    subject = exported(name)
    real, reference = Federation(subject).run(), Federation(subject, runner=eager(subject)).run()
    assert_near(real.trajectory(), reference.trajectory(), tolerance=1e-4)
    assert_near(real.judgement(), reference.judgement(), tolerance=1e-4)
    untrained = Federation(subject)
    assert any(label.startswith("pi-1's accuracy.") for label in real.judgement())
    assert {f"{device}'s predictions" for device in DEVICES} <= differ(real.judgement(), untrained.judgement())


@pytest.mark.parametrize("name", EVERY)
def test_every_slot_of_the_plan_was_compared(name: str) -> None:
    subject = exported(name)
    plan = subject.bundle.plan
    compared = Federation(subject).run().trajectory()
    for slot, each in {**plan.by_role(Role.UP), **plan.by_role(Role.KEEP)}.items():
        assert {f"round 3, pi-2's {slot}/{tensor}" for tensor in each.tensors} <= compared.keys()
    assert any(label.startswith("round 3, server's") for label in compared)


@pytest.mark.parametrize(("name", "scalar"), SCALARS)
def test_a_hyperparameter_that_is_fed_acts_as_a_field_of_that_value(name: str, scalar: str) -> None:
    subject = exported(name)
    value = subject.bundle.plan.hyper[scalar] * 0.5 + 0.125  # no default is a fixed point of this
    settings = subject.settings(**{scalar: value})
    fed = Federation(subject, settings).run().everything()
    assert_near(fed, of_fields(subject, settings), tolerance=1e-4)
    assert differ(fed, Federation(subject).run().everything()), f"{scalar} makes no difference"


@pytest.mark.parametrize("name", EVERY)
def test_a_hyperparameter_that_the_plan_does_not_have_is_refused_on_both_sides(name: str) -> None:
    subject = exported(name)
    federation = Federation(subject)
    federation.hyper = {**federation.hyper, "learning_rate": 0.1}
    with pytest.raises(PlanError, match="learning_rate"):
        federation.train("pi-1")
    with pytest.raises(PlanError, match="learning_rate"):
        federation.evaluate("pi-1")
    with pytest.raises(ConfigError, match="learning_rate"):
        updater.algorithm_of(subject.bundle.plan, {"learning_rate": 0.1})
    with pytest.raises(ConfigError, match="shaped the graphs"):
        updater.algorithm_of(subject.bundle.plan, {"inner_steps": subject.algorithm.inner_steps + 1})
