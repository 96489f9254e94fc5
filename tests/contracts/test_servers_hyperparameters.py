"""Every hyperparameter of the server acts, with the bundle as it was exported."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from _exported import EVERY, exported, others
from _federation import Federation, differ

from coordinator import updater
from edgepfl import algorithms
from edgepfl.algorithms import Setting, hyperparameters
from edgepfl.plan import Reduce, Role
from simulators.federation import Values, named

VALUES: Mapping[str, Setting] = {"a": 6.0, "lam_first": 0.3, "nu": 1e3}
"""Where half the usual value will not do."""

BESIDE: Mapping[str, updater.Settings] = {
    "a": {"lam": 0.2},  # so that models are far enough apart
    "lam_first": {"lam_rounds": 2},
    "nu": {"finalize": "cluster_mean"},
}
"""What else must be set for a hyperparameter to act."""


def cases() -> list[tuple[str, str, Setting]]:
    """Each algorithm's server hyperparameters, and another value of each."""
    found: list[tuple[str, str, Setting]] = []
    for name in EVERY:
        usual = algorithms.build(name, {})
        for field in (field for field, role in hyperparameters(type(usual)).items() if role == "server"):
            value = getattr(usual, field)
            values = [VALUES.get(field, value * 0.5 + 0.03)] if isinstance(value, float) else others(value)
            found += [(name, field, other) for other in values if not (field == "weighting" and other in usual.refused)]
    return found


def outcome(name: str, settings: Mapping[str, Setting]) -> Values:
    """What three rounds do, and what devices get after the last."""
    federation = Federation(exported(name), exported(name).settings(**settings)).run()
    concluded = federation.algorithm.conclude(federation.server)
    final = updater.downloads(federation.algorithm, concluded, "pi-2")
    return federation.trajectory() | named("in the end,", final)


def averages(name: str) -> bool:
    """Whether devices upload anything whose mean is taken."""
    uploads = exported(name).bundle.plan.by_role(Role.UP).values()
    return any(slot.reduce is Reduce.MEAN and slot.tensors for slot in uploads)


@pytest.mark.parametrize(("name", "field", "value"), cases())
def test_another_value_of_the_servers_hyperparameter_makes_a_difference(name: str, field: str, value: Setting) -> None:
    beside = BESIDE.get(field, {})
    found, usual = outcome(name, {**beside, field: value}), outcome(name, beside)
    if name == "fpfc":  # whose engine may have come to another form
        both = found.keys() & usual.keys()
        found, usual = ({key: values[key] for key in both} for values in (found, usual))
    assert found.keys() == usual.keys()
    assert bool(differ(found, usual)) == (field != "weighting" or averages(name))
