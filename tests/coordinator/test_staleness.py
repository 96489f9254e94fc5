"""What a late report weighs, against the formulas of the papers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.staleness import weighting_of
from edgepfl.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("polynomial:0.5", [1.0, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5, 1 / math.sqrt(5)]),
        ("polynomial:1", [1.0, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        ("polynomial:0", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("hinge:10,2", [1.0, 1.0, 1.0, 1 / 11, 1 / 21]),
        ("hinge:0.5,0", [1.0, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3]),
    ],
)
def test_the_closed_forms(words: str, weights: list[float]) -> None:
    weigh = weighting_of(words)
    assert [weigh(staleness) for staleness in range(5)] == pytest.approx(weights, rel=1e-15)


@given(
    words=st.one_of(
        st.floats(0, 20).map(lambda a: f"polynomial:{a}"),
        st.tuples(st.floats(0, 1e6), st.floats(0, 50)).map(lambda ab: f"hinge:{ab[0]},{ab[1]}"),
    ),
    staleness=st.integers(0, 200),
)
def test_a_weight_is_1_for_none_and_never_rises(words: str, staleness: int) -> None:
    weigh = weighting_of(words)
    assert weigh(0) == 1.0
    assert 0.0 < weigh(staleness + 1) <= weigh(staleness) <= 1.0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("", "there is no ''"),
        ("linear:1", "there is no 'linear'"),
        ("constant:1", "constant takes no numbers"),
        ("polynomial", "polynomial takes 1 number"),
        ("polynomial:1,2", "polynomial takes 1 number"),
        ("hinge:1", "hinge takes 2 numbers"),
        ("polynomial:fast", "a = 'fast' is no number"),
        ("polynomial:-1", "a must be from 0 to 1e6"),
        ("polynomial:nan", "a must be from 0 to 1e6"),
        ("hinge:1,inf", "b must be from 0 to 1e6"),
    ],
)
def test_words_that_name_no_weighting(words: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        weighting_of(words)
    assert (caught.value.where, "hinge:A,B" in (caught.value.remedy or "")) == ("staleness", True)
