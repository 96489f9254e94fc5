"""The exported graphs in the real runtimes against the same algorithm run eagerly by torch."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from _breadth import crossed
from _exported import DEVICES, EVERY, RUNTIMES, VARIANTS, Exported, Options, exported, label
from _federation import COHORTS, Federation, assert_near, differ, eager, runner, shipped

from coordinator import updater
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, hyperparameters
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, PlanError
from edgepfl.plan import Kind, Role
from exporters.binding import Binding
from exporters.eager import EagerRunner
from exporters.entries import Values as Tensors
from exporters.entries import entry_functions
from simulators.federation import Values

TOLERANCE = 1e-4

VALUES = {"clip": 0.05, "personal_steps": 2.0}
"""Values of hyperparameters for which half the usual one will not do."""


def scalars() -> list[tuple[str, str]]:
    """Each algorithm's runtime hyperparameters, but for those that the server draws anew for each round."""
    found = []
    for name in EVERY:
        usual = algorithms.build(name, {})
        drawn = usual.round_hyper(1, np.random.default_rng(0))
        roles = hyperparameters(type(usual))
        found += [(name, scalar) for scalar, role in roles.items() if role == "runtime" and scalar not in drawn]
    return found


def near(found: Federation, expected: Federation) -> None:
    """Every tensor and metric of the training, and of an evaluation after it."""
    assert_near(found.trajectory(), expected.trajectory(), tolerance=TOLERANCE)
    assert_near(found.judgement(), expected.judgement(), tolerance=TOLERANCE)


@pytest.mark.parametrize(  # other files start at the other end: processes share the exports
    ("name", "runtime"), crossed(EVERY, RUNTIMES)[::-1]
)
def test_three_rounds_and_their_evaluation_are_those_of_eager_torch(name: str, runtime: str) -> None:
    subject = shipped(name, runtime)
    real = Federation(subject, runner=runner(name, runtime)).run()
    near(real, Federation(subject, runner=eager(subject)).run())
    untrained = Federation(subject)
    assert any(label.startswith("pi-1's accuracy.") for label in real.judgement())
    assert {f"{device}'s predictions" for device in DEVICES} <= differ(real.judgement(), untrained.judgement())
    assert subject.bundle.plan == exported(name).bundle.plan


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=map(label, VARIANTS))
def test_so_they_are_with_every_option_that_shapes_the_graphs(name: str, options: Options) -> None:
    subject = exported(name, options=options)
    assert {option: subject.bundle.plan.fixed[option] for option, _ in options} == dict(options)
    real = Federation(subject).run(COHORTS[:2])
    near(real, Federation(subject, runner=eager(subject)).run(COHORTS[:2]))
    usual = Federation(exported(name), subject.settings()).run(COHORTS[:2])
    found, others = real.everything(), usual.everything()
    both = {value: found[value] for value in found.keys() & others.keys()}
    more_models = real.judgement().keys() != usual.judgement().keys()
    assert more_models or differ(both, others), "the option makes no difference"


@pytest.mark.parametrize("name", EVERY)
def test_every_slot_of_the_plan_was_compared(name: str) -> None:
    plan = exported(name).bundle.plan
    compared = Federation(exported(name)).run().trajectory()
    for slot, each in {**plan.by_role(Role.UP), **plan.by_role(Role.KEEP)}.items():
        assert {f"round 3, pi-2's {slot}/{tensor}" for tensor in each.tensors} <= compared.keys()
    assert {f"round 3, pi-2's {slot}" for slot in plan.by_role(Role.TELL)} <= compared.keys()
    assert any(label.startswith("round 3, server's") for label in compared)


@dataclasses.dataclass(frozen=True)
class FieldBinding(Binding):
    """The fields of a federation's own algorithm, Python numbers, in place of what the graphs are fed."""

    federations: list[Federation] = dataclasses.field(default_factory=list)

    def tuned(self, values: Tensors) -> Algorithm:  # noqa: ARG002  not reading them is the point
        (federation,) = self.federations
        return federation.tuned


def of_fields(subject: Exported, settings: updater.Settings) -> Values:
    """Three rounds and an evaluation by an eager instance whose fields are ``settings``; nothing is fed."""
    bundle = subject.bundle
    instance = updater.algorithm_of(bundle.plan, settings)
    binding = FieldBinding(instance, subject.model)
    eager_runner = EagerRunner(instance, subject.model)
    eager_runner.functions = entry_functions(binding)
    own = Bundle(msgspec.structs.replace(bundle.plan, hyper=binding.hyper), bundle.model, bundle.graphs, bundle.golden)
    federation = Federation(dataclasses.replace(subject, bundle=own), settings, runner=eager_runner)
    binding.federations.append(federation)
    federation.hyper = {}
    return federation.run().everything()


def that_uses(name: str, scalar: str) -> Exported:
    """The algorithm, or where its graphs do not read the hyperparameter but an option's do, with the option."""
    for options in [(), *(options for other, options in VARIANTS if other == name)]:
        subject = exported(name, options=options)
        ports = [port for graph in subject.bundle.plan.graphs.values() for port in graph.inputs]
        if any((port.kind, port.group) == (Kind.HYPER, scalar) for port in ports):
            return subject
    return exported(name)  # only the server reads it


@pytest.mark.parametrize(("name", "scalar"), scalars())
def test_a_hyperparameter_that_is_fed_acts_as_a_field_of_that_value(name: str, scalar: str) -> None:
    subject = that_uses(name, scalar)
    usual = subject.settings()
    value = VALUES.get(scalar, float(usual.get(scalar, subject.bundle.plan.hyper[scalar])) * 0.5 + 0.03)
    settings = {**usual, scalar: value}
    fed = Federation(subject, settings).run().everything()
    assert_near(fed, of_fields(subject, settings), tolerance=TOLERANCE)
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
