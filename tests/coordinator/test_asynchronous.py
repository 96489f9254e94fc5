"""Which algorithms, and with what else, may be trained with a buffer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from _plans import plan_of

from coordinator import asynchronous, updater
from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.errors import ConfigError

TAKE = ("apfl", "ditto", "fedavg", "fedem", "fedper", "fedprox", "perfedavg", "pfedbred", "pfedmac", "pfedme")
REFUSE = {
    "fedamp": "it adds no mean",
    "fedcr": "reckons with precision and present and shift",
    "feddc": "moves h_sum and w at once",
    "feddr": "it adds no mean",
    "feddyn": "moves g_sum and mean and w at once",
    "fedsplit": "being their mean",
    "fpfc": "it adds no mean",
    "l2sgd": "coins are tossed for all devices",
    "proxskip": "coins are tossed for all devices",
    "scaffold": "reckons with variate",
}


def check(name: str, hubs: Collection[str] = (), **fields: Any) -> None:  # noqa: ANN401  whatever RunConfig takes
    plan = plan_of(name)
    config = RunConfig(**{"buffer": 2, "goal": 4, "minimum": 1, **fields})
    asynchronous.check(updater.algorithm_of(plan, {}), plan, config, hubs)


@pytest.mark.parametrize("name", TAKE)
def test_an_algorithm_whose_server_adds_the_mean_change_is_taken(name: str) -> None:
    check(name)


@pytest.mark.parametrize(("name", "why"), REFUSE.items())
def test_any_other_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        check(name)
    assert caught.value.where == "buffer"
    check(name, buffer=0)


def test_every_algorithm_was_thought_of() -> None:
    assert {*TAKE, *REFUSE} == set(algorithms.names())


@pytest.mark.parametrize("rule", ["", "clip:3"])
def test_what_may_be_combined(rule: str) -> None:
    for server in ("", "fedadam"):
        check("fedavg", robust=rule, server_optimizer=server)
    if not rule:
        check("fedavg", exact=True)


@pytest.mark.parametrize("rule", ["median", "krum:1", "geometric_median"])
def test_a_rule_that_compares_uploads_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match="late ones start from other models"):
        check("fedavg", robust=rule)
    check("fedavg", robust=rule, buffer=0)


def test_hubs_are_refused() -> None:
    with pytest.raises(ConfigError, match="north and south sum up"):
        check("fedavg", hubs=("south", "north"))
    check("fedavg", hubs=("south", "north"), buffer=0)


def test_words_for_no_weighting_are_refused_even_where_they_are_not_used() -> None:
    with pytest.raises(ConfigError, match="there is no 'never'"):
        check("fpfc", buffer=0, staleness="never")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"buffer": 5}, "buffer .5. is above goal .4."),
        ({"buffer": 2, "minimum": 3}, "minimum .3. is above buffer .2."),
        ({"buffer": 2, "over": 1.5}, "no device is waited for"),
    ],
)
def test_settings_that_contradict_each_other(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check("fedavg", **fields)
