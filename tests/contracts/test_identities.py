"""Algorithms that are one another where a hyperparameter vanishes, each from its own exported graphs.

Adding ``0 * (x - w)`` changes no bit of a gradient but the sign of a zero, which ``x - lr * g`` does not see, so the
graphs that take the same steps are compared bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from _exported import DEVICES, Options, exported
from _federation import COHORTS, STEPS, Federation, assert_apart, assert_equal, assert_near, differ

from coordinator import updater
from edgepfl.plan import Entry, Role, Weighting
from edgepfl.tree import Tree
from simulators.federation import Values, named

CENTRE, CHANGE = "w", "delta"
EVERYBODY = (tuple(DEVICES),) * 2
EXAMPLES: updater.Settings = {"weighting": Weighting.EXAMPLES}
UNIFORM: updater.Settings = {"weighting": Weighting.UNIFORM}


def run(
    name: str,
    settings: Mapping[str, float | str] = MappingProxyType({}),
    *,
    cohorts: Sequence[Sequence[str]] = COHORTS,
    steps: int = STEPS,
    personal: tuple[str, ...] | None = None,
    options: Options = (),
    represented: bool = False,
) -> Federation:
    """A round for each cohort, weighted by examples as FedAvg is unless that is refused or the settings say otherwise.

    Args:
        name: of the algorithm.
        settings: hyperparameters of the run.
        cohorts: of each round.
        steps: minibatch steps of each round, whatever the algorithm's coins say.
        personal: see :func:`_exported.exported`.
        options: likewise.
        represented: likewise.
    """
    subject = exported(name, personal, options=options, represented=represented)
    usual = {} if Weighting.EXAMPLES in subject.algorithm.refused else EXAMPLES
    federation = Federation(subject, subject.settings(**{**usual, **settings}))
    for cohort in cohorts:
        federation.round(cohort, steps)
    return federation


def changes(federation: Federation, **slots: str) -> Values:
    """Every round's values of some slots, each under the name that it is given."""
    found = {
        name.replace(f" {theirs}/", f" {ours}/"): array
        for name, array in federation.trajectory().items()
        for theirs, ours in slots.items()
        if f" {theirs}/" in name
    }
    assert found
    return found


def global_branch(federation: Federation, centre: str = CENTRE, change: str = CHANGE) -> Values:
    """Every round's uploads and states."""
    found = changes(federation, **{centre: CENTRE, change: CHANGE})
    tensors = len(federation.plan.slots[centre].tensors)
    uploads = sum(len(moved.results) for moved in federation.history)
    assert len(found) == tensors * (len(federation.history) + uploads)
    return found


def untold(federation: Federation) -> Values:
    """The trajectory without the numbers that the algorithm tells of it."""
    told = tuple(f" {slot}" for slot in federation.plan.by_role(Role.TELL))
    return {name: array for name, array in federation.trajectory().items() if not name.endswith(told)}


def judged(federation: Federation, model: str) -> Values:
    """The metrics of one of the devices' models."""
    found = {name: array for name, array in federation.judgement().items() if name.endswith(f".{model}")}
    assert len(found) == 2 * len(DEVICES)
    return {name.removesuffix(model): array for name, array in found.items()}


def local_only(steps_of: Federation, steps: int = STEPS) -> dict[str, Tree]:
    """Each device's model when it takes every round's steps from its own last one: FedAvg's step graph, no server."""
    models: dict[str, Tree] = {}
    for cohort in COHORTS:
        for device in cohort:
            own = models.get(device, steps_of.model)
            start = dataclasses.replace(steps_of.start(device), down={CENTRE: own})
            examples = DEVICES[device].fit(steps_of.plan)
            memory = steps_of.interpreter.open(start, examples)
            for _ in steps_of.interpreter.loop(memory, examples, steps, start.seed):
                steps_of.interpreter.call(Entry.STEP, memory)
            models[device] = Tree({tensor: memory["slot", "x", tensor] for tensor in own})
        steps_of.round(cohort)  # the next round's minibatches are others
    return models


def test_fedprox_without_its_pull_is_fedavg() -> None:
    fedprox, fedavg = run("fedprox", {"mu": 0.0}), run("fedavg")
    assert_equal(untold(fedprox), fedavg.trajectory())
    assert_equal(judged(fedprox, "global"), judged(fedavg, "global"))
    assert differ(untold(run("fedprox", {"mu": 1.0})), fedavg.trajectory())


def test_the_global_branch_of_ditto_is_fedavg() -> None:
    ditto, fedavg = run("ditto"), run("fedavg")
    assert_equal(global_branch(ditto), global_branch(fedavg))
    assert_equal(judged(ditto, "global"), judged(fedavg, "global"))


def test_the_global_branch_of_apfl_is_fedavg() -> None:
    apfl, fedavg = run("apfl"), run("fedavg")
    assert_equal(global_branch(apfl), global_branch(fedavg))
    assert_equal(judged(apfl, "global"), judged(fedavg, "global"))


def test_apfl_that_gives_its_local_model_no_weight_predicts_with_the_global_one() -> None:
    apfl = run("apfl", {"alpha_first": 0.0, "alpha_lr": 0.0})
    assert_equal(judged(apfl, "personal"), judged(apfl, "global"))
    for device in DEVICES:
        found = apfl.evaluate(device).personal
        assert_equal(named(device, {"model": found}), named(device, {"model": apfl.state[CENTRE]}))
    mixed = run("apfl")
    assert differ(judged(mixed, "personal"), judged(mixed, "global"))


def test_ditto_without_its_pull_is_local_training() -> None:
    ditto = run("ditto", {"lam": 0.0})
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
    assert_apart(named("pi-1", Federation(subject).run([["pi-1"]] * 3).kept["pi-1"]), expected)


def test_fedper_without_a_personal_part_is_fedavg() -> None:
    fedper, fedavg = run("fedper", personal=()), run("fedavg")
    assert_equal(global_branch(fedper, "body"), global_branch(fedavg))
    assert_equal(judged(fedper, "personal"), judged(fedavg, "global"))  # it tunes the personal part: nothing
    assert all(not trees["head"] for trees in fedper.kept.values())


def test_pfedbred_whose_prior_mean_is_its_copy_is_pfedme() -> None:
    shared: updater.Settings = {"lr": 0.05, "inner_lr": 0.1, "lam": 8.0}
    pfedbred, pfedme = run("pfedbred", {"eta": 0.0, "eta_a": 0.0, **shared}), run("pfedme", shared)
    theirs = {"w": "w", "delta": "delta", "theta": "theta"}
    assert_equal(changes(pfedbred, **theirs), changes(pfedme, **theirs))
    for model in ("personal", "global"):
        assert_equal(judged(pfedbred, model), judged(pfedme, model))
    assert differ(changes(run("pfedbred", shared), **theirs), changes(pfedme, **theirs))


def test_fedcr_without_noise_and_divergence_is_fedper_on_the_same_model() -> None:
    """Within rounding: its loss is the mean over draws, here equal, of what FedPer computes once."""
    fedcr = run("fedcr", {"beta": 0.0, "noise_scale": 0.0, **UNIFORM})
    fedper = run("fedper", UNIFORM, represented=True)
    slots = {"body": "body", "delta": "delta", "head": "head"}
    assert_near(changes(fedcr, **slots), changes(fedper, **slots), tolerance=1e-6)
    assert_near(judged(fedcr, "personal"), judged(fedper, "personal"), tolerance=1e-6)
    noisy = run("fedcr", {"beta": 0.0, **UNIFORM})
    assert_apart(changes(noisy, **slots), changes(fedper, **slots))


def test_feddc_without_a_correction_is_feddyn() -> None:
    """Within rounding: their variables are multiples of each other, ``g = -alpha h``."""
    weight = 0.1
    feddc = run("feddc", {"alpha": weight}, options=(("grad_correction", "none"),))
    feddyn = run("feddyn", {"mu": weight})
    assert_near(global_branch(feddc), global_branch(feddyn), tolerance=1e-6)
    for device in DEVICES:
        drift = {"g": -weight * feddc.kept[device]["h"]}
        assert_near(named(device, drift), named(device, feddyn.kept[device]), tolerance=1e-6)
    corrected = run("feddc", {"alpha": weight})
    assert_apart(global_branch(corrected), global_branch(feddyn))


def test_the_first_round_of_scaffold_is_that_of_fedavg() -> None:
    scaffold, fedavg = run("scaffold"), run("fedavg", UNIFORM)
    assert_equal(first_round(global_branch(scaffold)), first_round(global_branch(fedavg)))
    assert differ(global_branch(scaffold), global_branch(fedavg))


def test_the_first_round_of_feddyn_is_that_of_fedprox() -> None:
    """Of the mean model: the server's own has a multiple of the mean change besides."""
    feddyn, fedprox = run("feddyn", {"mu": 0.5}), run("fedprox", {"mu": 0.5, **UNIFORM})
    found = changes(feddyn, mean="w", delta="delta")
    assert_equal(first_round(found), first_round(global_branch(fedprox)))
    assert differ(global_branch(feddyn), global_branch(fedprox))


def test_the_first_round_of_proxskip_is_that_of_fedavg() -> None:
    proxskip, fedavg = run("proxskip", cohorts=EVERYBODY), run("fedavg", UNIFORM, cohorts=EVERYBODY)
    assert_equal(first_round(global_branch(proxskip)), first_round(global_branch(fedavg)))
    assert differ(global_branch(proxskip), global_branch(fedavg))


def test_fedem_of_one_component_is_fedavg() -> None:
    fedem, fedavg = run("fedem", options=(("components", 1),)), run("fedavg")
    assert_equal(global_branch(fedem, "theta0", "delta0"), global_branch(fedavg))
    assert_near(judged(fedem, "personal"), judged(fedavg, "global"), tolerance=1e-6)
    assert all(trees["pi"].value == 1 for trees in fedem.kept.values())


def test_l2sgd_that_does_not_pull_is_local_training() -> None:
    l2sgd = run("l2sgd", {"lam": 0.0, "lr": 0.125, "p": 0.5})  # so lr / (1 - p) is the others' learning rate
    alone = local_only(Federation(exported("fedavg")))
    for device, model in alone.items():
        assert_equal(named(device, l2sgd.kept[device]), named(device, {"x": model}))
    pulled = run("l2sgd", {"lam": 1.0, "lr": 0.125, "p": 0.5})
    assert_apart(named("pi-1", pulled.kept["pi-1"]), named("pi-1", {"x": alone["pi-1"]}))


def test_fpfc_without_a_penalty_is_local_gradient_descent() -> None:
    """Of one step a round, and within rounding: then the centre is the device's own model, as the server sums it up."""
    fpfc = run("fpfc", {"lam": 0.0}, steps=1)
    alone = local_only(Federation(exported("fedavg")), steps=1)
    for device, model in alone.items():
        assert_near(named(device, fpfc.kept[device]), named(device, {"omega": model}), tolerance=1e-6)
    fused = run("fpfc", {"lam": 0.6}, steps=1)
    for device, model in alone.items():
        assert_apart(named(device, fused.kept[device]), named(device, {"omega": model}))


def test_pfedmac_that_does_not_correlate_leaves_the_global_model_alone() -> None:
    """Its personal models are then those of pFedMe without a pull, within rounding: the graphs' operators differ."""
    rates = {"lr": 0.05, "inner_lr": 0.1}
    pfedmac, pfedme = run("pfedmac", {"mu": 0.0, **rates}), run("pfedme", {"lam": 0.0, **rates})
    first = Federation(exported("pfedmac"))
    assert_equal(named("server's", pfedmac.state), named("server's", first.state))
    theirs = {"w": "w", "delta": "delta", "theta": "theta"}
    assert_near(changes(pfedmac, **theirs), changes(pfedme, **theirs), tolerance=1e-6)
    for device in DEVICES:
        assert_apart(named(device, pfedmac.kept[device]), named(device, {"theta": first.model}))


def first_round(values: Values) -> Values:
    """What of a trajectory is its first round's."""
    return {name: array for name, array in values.items() if name.startswith("round 1,")}
