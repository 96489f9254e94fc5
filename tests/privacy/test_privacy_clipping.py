"""A contribution is within its bound, to the last bit, and otherwise what it was."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _plans import plan_of, uploads_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from device_agent.privacy import Bounded
from edgepfl.coding import Coding
from edgepfl.errors import CodecError
from edgepfl.privacy import Terms, clipped, norm_of
from edgepfl.tree import Tree, Trees

ALLOWED = (
    "apfl", "ditto", "fedavg", "fedem", "fedper", "fedprox", "l2sgd", "perfedavg", "pfedbred", "pfedmac", "pfedme",
)  # fmt: skip
"""The algorithms whose server only adds the mean of what devices changed."""

NUMBERS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))
CONTRIBUTIONS = st.lists(NUMBERS, min_size=1, max_size=3).map(
    lambda parts: {"delta": Tree({str(place): part for place, part in enumerate(parts)})}
)


def exact_norm(trees: Trees) -> float:
    """By Python's correctly rounded sums."""
    squares = [float(x) ** 2 for tree in trees.values() for tensor in tree.values() for x in np.ravel(tensor)]
    return math.sqrt(math.fsum(squares))


@given(CONTRIBUTIONS, st.floats(2.0**-60, 2.0**60))
def test_the_norm_is_within_the_bound(trees: Trees, clip: float) -> None:
    bounded, norm = clipped(trees, clip)
    assert norm == pytest.approx(exact_norm(trees), rel=1e-12)
    assert exact_norm(bounded) <= clip
    if norm <= clip:
        assert bounded is trees
    else:
        assert exact_norm(bounded) >= clip * (1 - 2e-6) or clip < 2.0**-40  # tiny float32 numbers round to 0


@given(CONTRIBUTIONS, st.floats(2.0**-20, 2.0**20))
def test_the_direction_stays(trees: Trees, clip: float) -> None:
    bounded, norm = clipped(trees, clip)
    factor = min(1.0, clip / norm) if norm else 1.0
    for name, tensor in trees["delta"].items():
        np.testing.assert_allclose(bounded["delta"][name], factor * tensor.astype(float), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(CodecError, match="not finite"):
        clipped({"delta": Tree({"w": np.array([1.0, bad], np.float32)})}, 1.0)


@pytest.mark.parametrize("name", ALLOWED)
def test_all_slots_of_an_algorithm_are_clipped_together(name: str) -> None:
    plan = plan_of(name)
    upload = uploads_of(plan, "ant", 1)
    coding = Coding("", plan)
    assert norm_of(upload) > 0.5
    sent = Bounded(coding, Terms(0.5)).encode(upload, 1, {})
    arrived = coding.decode(sent.data)
    assert 0.49999 < norm_of(arrived) <= 0.5
    free = Bounded(coding, Terms(1e6)).encode(upload, 1, {})
    assert free.data == coding.encode(upload, 1).data


def test_local_noise_is_on_what_leaves_and_is_never_the_same() -> None:
    draws = 4000
    plan = plan_of("fedavg")
    coding = Coding("", plan)
    upload = uploads_of(plan, "ant", 1)
    made = Bounded(coding, Terms(1.0, noise=3.0))
    one, two = (coding.decode(made.encode(upload, 1, {}).data) for _ in range(2))
    assert norm_of({"d": one["delta"] - two["delta"]}) > 0
    bounded, _ = clipped(upload, 1.0)
    found = [
        x
        for _ in range(draws // 8)
        for tensor in (coding.decode(made.encode(upload, 1, {}).data)["delta"] - bounded["delta"]).values()
        for x in np.ravel(tensor)
    ]
    spread = float(np.mean(np.square(found)))  # 9 chi2_n / n: 5.5 of its standard deviations, 4e-8 by chance
    assert abs(spread - 9) < 5.5 * 9 * math.sqrt(2 / len(found))
