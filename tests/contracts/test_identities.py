"""Algorithms that are one another where a hyperparameter vanishes, each from its own exported graphs.

Adding ``0 * (x - w)`` changes no bit of a gradient but the sign of a zero, which ``x - lr * g`` does not see, so the
graphs that take the same steps are compared bit for bit.
"""

from __future__ import annotations

import numpy as np
from _exported import DEVICES, exported
from _federation import STEPS, Federation, Values, assert_equal, assert_near, named

from device_agent.memory import Memory
from edgepfl.plan import Entry
from edgepfl.tree import Tree, Trees


def run(name: str, **settings: float | str) -> Federation:
    """Three rounds, the devices weighted by their examples as FedAvg weights them."""
    subject = exported(name)
    return Federation(subject, subject.settings(weighting="examples", **settings)).run()


def global_branch(federation: Federation) -> Values:
    """Uploads, states and training losses."""
    own = federation.plan.slots.keys() - {"w", "delta"}
    return {label: array for label, array in federation.trajectory().items() if not any(f" {s}/" in label for s in own)}


def judged_globally(federation: Federation) -> Values:
    return {label: array for label, array in federation.judgement().items() if label.endswith(".global")}


def test_fedprox_without_its_pull_is_fedavg() -> None:
    fedprox, fedavg = run("fedprox", mu=0.0), run("fedavg")
    assert_equal(fedprox.trajectory(), fedavg.trajectory())
    assert_equal(judged_globally(fedprox), judged_globally(fedavg))
    assert np.any(fedprox.state["w"]["head.bias"] != run("fedprox", mu=1.0).state["w"]["head.bias"])
