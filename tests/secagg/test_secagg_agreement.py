"""Which algorithms, and with what else, may be trained under secure aggregation, and that they come to the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from _exchange import ABOUT, Exchange, names
from _plans import model, plan_of, uploads_of

from coordinator import updater
from coordinator.config import RunConfig
from coordinator.reduction import Upload
from coordinator.secagg.agreement import check, check_aggregated, terms_of
from coordinator.secagg.reduction import Masked
from edgepfl import algorithms
from edgepfl.algorithms import Cohort
from edgepfl.errors import CodecError, ConfigError, RunError
from edgepfl.plan import Plan, Role
from edgepfl.secagg.server import Server
from edgepfl.secagg.vector import Layout
from edgepfl.wire import BlobRef, Report

TAKE = (
    *(
        "apfl",
        "ditto",
        "fedavg",
        "fedcr",
        "feddr",
        "feddyn",
        "fedem",
        "fedper",
        "fedprox",
        "fedsplit",
        "l2sgd",
        "perfedavg",
    ),
    *("pfedbred", "pfedmac", "pfedme", "proxskip"),
)
REFUSE = {
    "fedamp": "each device",
    "feddc": "computes .* from each single upload",
    "fpfc": "each device",
    "scaffold": "computes variate from each single upload",
}
EXAMPLES = {"pi-000": 7, "pi-001": 250, "pi-002": 1, "pi-003": 33}
RUN = ABOUT.decode().partition("\n")[0]


def agreed(name: str, hubs: Collection[str] = (), **fields: Any) -> Plan:  # noqa: ANN401  whatever RunConfig takes
    plan = plan_of(name)
    config = settings(**fields)
    check(updater.algorithm_of(plan, {}), plan, config, hubs)
    return plan


def settings(**fields: Any) -> RunConfig:  # noqa: ANN401  likewise
    return RunConfig(**{"secagg": True, "goal": 4, "minimum": 3, **fields})


@pytest.mark.parametrize(("name", "why"), REFUSE.items())
def test_what_needs_single_uploads_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        agreed(name)
    assert caught.value.where == "secagg"
    agreed(name, secagg=False)


def test_every_algorithm_was_thought_of() -> None:
    assert {*TAKE, *REFUSE} == set(algorithms.names())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"robust": "median"}, "looks at each device's own upload"),
        ({"robust": "clip:3"}, "looks at each device's own upload"),
        ({"codec": "int8"}, "cannot be summed under masks"),
        ({"buffer": 3}, "different rounds"),
        ({"exact": True}, "exact by themselves"),
        ({"hubs": ("north",)}, "north would see the uploads"),
        ({"minimum": 2}, "knows the other's"),
        ({"secagg_clip": 1e12, "max_examples": 1 << 31}, "fewer than 20 of 64 bits"),
    ],
)
def test_what_cannot_be_had_together_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        agreed("fedavg", **fields)
    agreed("fedavg", **{**fields, "secagg": False})


def test_aggregators_do_not_open_sums() -> None:
    with pytest.raises(ConfigError, match="aggregators fold single uploads"):
        check_aggregated(settings())
    check_aggregated(RunConfig())


def report(device: str, layout: Layout, examples: int) -> Report:
    ref = BlobRef("0" * 64, layout.nbytes)
    return Report(device, 1, RUN, 3, 0, examples, 10, ref, {}, {}, "0" * 64)


def masked(plan: Plan, exchange: Exchange, claims: dict[str, int]) -> tuple[Masked, Layout]:
    """A whole attempt, in which one device drops out after the shares; what was folded, and can be opened."""
    terms = terms_of(updater.algorithm_of(plan, {}), plan, settings())
    assert terms is not None
    layout = Layout.of(terms, plan)
    exchange.begin()
    folded = Masked(layout, plan.by_role(Role.UP), RUN)
    for name in sorted(EXAMPLES):
        exchange.mask(name, layout.encode(uploads_of(plan, name, 3), EXAMPLES[name]))
        folded.offer(report(name, layout, claims[name]), exchange.uploads[name].tobytes())
        folded.offer(report(name, layout, claims[name]), exchange.uploads[name].tobytes())  # again: it counts once
    exchange.lose(["pi-004"])
    exchange.close()
    return folded, layout


def plainly(plan: Plan) -> Cohort:
    algorithm = updater.algorithm_of(plan, {})
    reduction = updater.reduction(algorithm, plan, EXAMPLES)
    for name, examples in EXAMPLES.items():
        trees = uploads_of(plan, name, 3)
        reduction.offer(name, Upload(examples, 10, lambda trees=trees: trees))  # type: ignore[misc]  # mypy: a default
    return reduction.close(sorted(EXAMPLES), number=3, fleet=names(5))


@pytest.mark.parametrize("name", TAKE)
def test_an_algorithm_that_sums_are_enough_for_comes_to_the_same(name: str) -> None:
    plan = agreed(name)
    algorithm = updater.algorithm_of(plan, {})
    exchange = Exchange(names(5))
    folded, layout = masked(plan, exchange, EXAMPLES)
    folded.open(exchange.server)
    ours, plain = folded.close(sorted(EXAMPLES), number=3, fleet=names(5)), plainly(plan)
    assert (ours.devices, ours.examples, ours.steps) == (plain.devices, plain.examples, plain.steps)
    assert (ours.number, ours.fleet, ours.stack) == (plain.number, plain.fleet, {})
    for slot, tree in plain.total.items():
        for tensor, value in tree.items():
            error = len(EXAMPLES) * layout.fixed.error
            np.testing.assert_allclose(ours.total[slot][tensor], value, rtol=2**-23, atol=error)
    after = [updater.next_state(algorithm, updater.first_state(algorithm, plan, model()), got) for got in (ours, plain)]
    for slot, tree in after[1].items():
        for tensor, value in tree.items():
            np.testing.assert_allclose(after[0][slot][tensor], value, rtol=1e-5, atol=1e-6)


def test_a_sum_that_does_not_fit_its_reports_is_no_update() -> None:
    """Planted: a device that reports another weight, and the secrets of another attempt."""
    plan = agreed("fedavg")
    exchange = Exchange(names(5))
    folded, _ = masked(plan, exchange, {**EXAMPLES, "pi-002": 2})
    folded.open(exchange.server)
    with pytest.raises(CodecError, match="reports say 292 examples, and under the masks there are 291"):
        folded.close(sorted(EXAMPLES))
    folded, _ = masked(plan, exchange := Exchange(names(5)), EXAMPLES)
    other = Exchange(names(5), seed=9)
    masked(plan, other, EXAMPLES)
    folded.open(other.server)
    with pytest.raises(CodecError, match="under the masks there are"):
        folded.close(sorted(EXAMPLES))


def test_a_sum_opens_over_what_was_agreed_alone() -> None:
    plan = agreed("fedavg")
    exchange = Exchange(names(5))
    folded, layout = masked(plan, exchange, EXAMPLES)
    with pytest.raises(RunError, match="are not open"):
        folded.close(sorted(EXAMPLES))
    folded.open(exchange.server)
    with pytest.raises(RunError, match="are not open"):
        folded.close(sorted(EXAMPLES)[:3])
    with pytest.raises(CodecError, match="bytes, and"):
        folded.offer(report("pi-009", layout, 1), bytes(layout.nbytes - 1))
    assert isinstance(exchange.server, Server)
