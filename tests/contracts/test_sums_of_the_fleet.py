"""What the server knows of all devices' own variables, from uploads alone, is what the devices keep.

Some uploads are lost on the way: then the device's variables stay as they were, and so must the server's.  A codec that
rounds changes what arrives: then the device's follow that.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from _exported import DEVICES, Options, exported, label
from _federation import COHORTS, Federation, assert_near

from edgepfl.algorithms.fpfc import FPFC
from edgepfl.tree import Tree
from simulators.federation import named

SUMS: list[tuple[str, Options, str, str]] = [
    ("feddyn", (), "g_sum", "g"),
    ("feddc", (), "h_sum", "h"),
    ("feddc", (), "c_sum", "c_k"),
    ("feddc", (("grad_correction", "last_update"),), "h_sum", "h"),
    ("feddc", (("grad_correction", "last_update"),), "c_sum", "c_k"),
    ("feddc", (("grad_correction", "none"),), "h_sum", "h"),
    ("scaffold", (), "c_sum", "c_k"),
    ("scaffold", (("option", "I"),), "c_sum", "c_k"),
]
"""Algorithm, options, the server's sum, and the KEEP slot that it sums."""


CODECS = ("", "float16", "int8", "int4")


def with_losses(name: str, options: Options = (), codec: str = "") -> Federation:
    """Three rounds, in each of which the device that is not of the cohort trains too and its report is lost."""
    federation = Federation(exported(name, options=options), codec=codec)
    for cohort in COHORTS:
        for lost in DEVICES.keys() - set(cohort):
            federation.train(lost)
        federation.round(cohort)
    assert federation.kept.keys() == DEVICES.keys()
    return federation


def total(trees: list[Tree]) -> Tree:
    return reduce(lambda a, b: a + b, trees)


def assert_is(found: Tree, expected: Tree) -> None:
    assert_near(named("the", {"sum": found}), named("the", {"sum": expected}), tolerance=1e-6)
    assert all(np.abs(array).max() > 1e-3 for array in expected.values())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("name", "options", "slot", "own"), SUMS, ids=[f"{label(each[:2])}-{each[2]}" for each in SUMS]
)
def test_a_sum_is_that_of_what_devices_keep(name: str, options: Options, slot: str, own: str, codec: str) -> None:
    federation = with_losses(name, options, codec)
    assert_is(federation.state[slot], total([kept[own] for kept in federation.kept.values()]))


@pytest.mark.parametrize("codec", CODECS)
def test_the_means_of_feddr_and_fedsplit_are_those_of_what_devices_keep(codec: str) -> None:
    feddr, fedsplit = with_losses("feddr", codec=codec), with_losses("fedsplit", codec=codec)
    reflected = [2 * kept["x"] - kept["y"] for kept in feddr.kept.values()]
    assert_is(feddr.state["w"], total(reflected) / len(DEVICES))
    assert_is(fedsplit.state["x"], total([kept["z"] for kept in fedsplit.kept.values()]) / len(DEVICES))


@pytest.mark.parametrize("codec", CODECS)
def test_proxskips_variates_cancel_where_everybody_takes_part(codec: str) -> None:
    federation = Federation(exported("proxskip"), codec=codec).run([tuple(DEVICES)] * 3)
    federation.train("pi-1")  # and is lost
    p, lr = (federation.hyper[name] for name in ("p", "lr"))
    variates = [kept["h"] + p / lr * (federation.state["w"] - kept["xh"]) for kept in federation.kept.values()]
    for name, array in total(variates).items():
        greatest = max(float(np.abs(variate[name]).max()) for variate in variates)
        assert greatest > 1e-3
        assert np.abs(array).max() < 1e-5 * greatest + 1e-6


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("name", "slot", "own"), [("fpfc", "omega", "omega"), ("fedamp", "w", "w")])
def test_a_server_that_keeps_every_devices_model_has_the_one_that_the_device_has(
    name: str, slot: str, own: str, codec: str
) -> None:
    federation = with_losses(name, codec=codec)
    algorithm = federation.algorithm
    rows = algorithm.models(federation.server) if isinstance(algorithm, FPFC) else federation.state[slot]
    assert rows.keys() == DEVICES.keys()
    for device, row in rows.items():
        kept = federation.kept[device][own]
        assert np.asarray(row).tobytes() == np.concatenate([array.ravel() for array in kept.values()]).tobytes()
