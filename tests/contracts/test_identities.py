"""Algorithms that are one another where a hyperparameter vanishes, each from its own exported graphs.

Adding ``0 * (x - w)`` changes no bit of a gradient but the sign of a zero, which ``x - lr * g`` does not see, so the
graphs that take the same steps are compared bit for bit.
"""

from __future__ import annotations

import dataclasses

from _exported import DEVICES, exported
from _federation import COHORTS, STEPS, Federation, assert_equal, assert_near, differ

from edgepfl.plan import Entry, Role
from edgepfl.tree import Tree
from simulators.federation import Values, named

CENTRE, CHANGE = "w", "delta"


def run(name: str, personal: tuple[str, ...] | None = None, **settings: float | str) -> Federation:
    """Three rounds, the devices weighted by their examples as FedAvg weights them."""
    subject = exported(name, personal)
    return Federation(subject, subject.settings(weighting="examples", **settings)).run()


def global_branch(federation: Federation, centre: str = CENTRE) -> Values:
    """Every round's uploads and states."""
    parts = (f" {centre}/", f" {CHANGE}/")
    found = {name: array for name, array in federation.trajectory().items() if any(part in name for part in parts)}
    assert len(found) == 4 * (3 + 7)  # four tensors, three states, seven uploads
    return {name.replace(f" {centre}/", f" {CENTRE}/"): array for name, array in found.items()}


def untold(federation: Federation) -> Values:
    """The trajectory without the numbers that the algorithm tells of it."""
    told = tuple(f" {slot}" for slot in federation.plan.by_role(Role.TELL))
    return {name: array for name, array in federation.trajectory().items() if not name.endswith(told)}


def judged(federation: Federation, model: str) -> Values:
    """The metrics of one of the devices' models."""
    found = {name: array for name, array in federation.judgement().items() if name.endswith(f".{model}")}
    assert len(found) == 2 * len(DEVICES)
    return {name.removesuffix(model): array for name, array in found.items()}


def local_only(steps_of: Federation) -> dict[str, Tree]:
    """Each device's model when it takes every round's steps from its own last one: FedAvg's step graph, no server."""
    models: dict[str, Tree] = {}
    for cohort in COHORTS:
        for device in cohort:
            own = models.get(device, steps_of.model)
            start = dataclasses.replace(steps_of.start(device), down={CENTRE: own})
            examples = DEVICES[device].fit(steps_of.plan)
            memory = steps_of.interpreter.open(start, examples)
            for _ in steps_of.interpreter.loop(memory, examples, STEPS, start.seed):
                steps_of.interpreter.call(Entry.STEP, memory)
            models[device] = Tree({tensor: memory["slot", "x", tensor] for tensor in own})
        steps_of.round(cohort)  # the next round's minibatches are others
    return models


def test_fedprox_without_its_pull_is_fedavg() -> None:
    fedprox, fedavg = run("fedprox", mu=0.0), run("fedavg")
    assert_equal(untold(fedprox), fedavg.trajectory())
    assert_equal(judged(fedprox, "global"), judged(fedavg, "global"))
    assert differ(untold(run("fedprox", mu=1.0)), fedavg.trajectory())


def test_the_global_branch_of_ditto_is_fedavg() -> None:
    ditto, fedavg = run("ditto"), run("fedavg")
    assert_equal(global_branch(ditto), global_branch(fedavg))
    assert_equal(judged(ditto, "global"), judged(fedavg, "global"))


def test_the_global_branch_of_apfl_is_fedavg() -> None:
    apfl, fedavg = run("apfl"), run("fedavg")
    assert_equal(global_branch(apfl), global_branch(fedavg))
    assert_equal(judged(apfl, "global"), judged(fedavg, "global"))


def test_apfl_that_gives_its_local_model_no_weight_predicts_with_the_global_one() -> None:
    apfl = run("apfl", alpha_first=0.0, alpha_lr=0.0)
    assert_equal(judged(apfl, "personal"), judged(apfl, "global"))
    for device in DEVICES:
        found = apfl.evaluate(device).personal
        assert_equal(named(device, {"model": found}), named(device, {"model": apfl.state[CENTRE]}))
    mixed = run("apfl")
    assert differ(judged(mixed, "personal"), judged(mixed, "global"))


def test_ditto_without_its_pull_is_local_training() -> None:
    ditto = run("ditto", lam=0.0)
    alone = local_only(Federation(exported("fedavg")))
    for device, model in alone.items():
        assert_equal(named(device, ditto.kept[device]), named(device, {"v": model}))
    assert alone.keys() == DEVICES.keys()


def test_ditto_without_its_pull_is_fedavg_of_one_device() -> None:
    """Within rounding: FedAvg's server adds a rounded difference, ``w + (x - w)``; Ditto keeps ``x`` itself."""
    subject = exported("ditto")
    ditto = Federation(subject, subject.settings(lam=0.0)).run([["pi-1"]] * 3)
    fedavg = Federation(exported("fedavg")).run([["pi-1"]] * 3)
    expected = named("pi-1", {"v": fedavg.state[CENTRE]})
    assert_near(named("pi-1", ditto.kept["pi-1"]), expected, tolerance=1e-6)
    assert differ(named("pi-1", Federation(subject).run([["pi-1"]] * 3).kept["pi-1"]), expected)


def test_fedper_without_a_personal_part_is_fedavg() -> None:
    fedper, fedavg = run("fedper", personal=()), run("fedavg")
    assert_equal(global_branch(fedper, centre="body"), global_branch(fedavg))
    assert_equal(judged(fedper, "personal"), judged(fedavg, "global"))  # it tunes the personal part: nothing
    assert all(not trees["head"] for trees in fedper.kept.values())
