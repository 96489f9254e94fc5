from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exporters.windows import Axis, gather, scatter

AXES = st.builds(
    Axis,
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 3),
)


def _fits(axis: Axis, size: int) -> bool:
    return axis.length(size) >= 1


@settings(deadline=None, max_examples=150)
@given(first=AXES, second=AXES, sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)), seed=st.integers(0, 99))
def test_scatter_is_the_adjoint_of_gather(first: Axis, second: Axis, sizes: tuple[int, int], seed: int) -> None:
    axes = [first, second]
    assume(all(map(_fits, axes, sizes)))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, *sizes, 3, generator=generator, dtype=torch.float64)
    taps = gather(x, axes)
    others = [torch.randn(tap.shape, generator=generator, dtype=torch.float64) for tap in taps]
    forward = sum(float((tap * other).sum()) for tap, other in zip(taps, others, strict=True))
    backward = scatter(others, axes, sizes)
    assert backward.shape == x.shape
    assert forward == pytest.approx(float((x * backward).sum()), abs=1e-9)


def test_taps_are_in_row_major_order_and_padding_is_filled() -> None:
    x = torch.arange(6.0).reshape(1, 2, 3, 1)
    taps = gather(x, [Axis(2), Axis(2, padding=1)], fill=-1)
    assert [tap.flatten().tolist() for tap in taps] == [[-1, 0, 1, 2], [0, 1, 2, -1], [-1, 3, 4, 5], [3, 4, 5, -1]]
    assert taps[0].shape == (1, 1, 4, 1)
