from __future__ import annotations

import itertools
from typing import Any

import pytest
from _layer_check import RUNTIMES, Case, case, decomposed, everywhere, exported, on, tied
from torch import nn

from exporters.decompositions import complete
from exporters.native import onnx_table
from exporters.xnnpack_layers import table as xnnpack_table

TABLES = {"everywhere": complete, "onnx": onnx_table, "executorch": xnnpack_table}


def _pool(kind: str, dims: int, *args: Any, sizes: tuple[int, int] = (10, 7), **settings: Any) -> Case:  # noqa: ANN401  whatever the layer takes
    layer = getattr(nn, f"{kind}Pool{dims}d")
    name = ",".join([*map(str, args), *(f"{key}={value}" for key, value in settings.items())])
    shape = (2, 3, *sizes[:dims])
    return case(f"{layer.__name__}({name})", lambda: layer(*args, **settings), shape, draw=tied)


CASES = [
    *(
        _pool(kind, dims, kernel, stride, padding, ceil_mode=ceil)
        for kind, dims, kernel, stride, padding, ceil in itertools.product(
            ("Max", "Avg"), (1, 2), (2, 3), (1, 2, 3), (0, 1), (False, True)
        )
    ),
    *(_pool("Max", dims, 3, 2, 1, dilation=2, ceil_mode=ceil) for dims in (1, 2) for ceil in (False, True)),
    *(
        _pool("Avg", dims, 3, 2, 1, count_include_pad=False, ceil_mode=ceil)
        for dims in (1, 2)
        for ceil in (False, True)
    ),
    _pool("Avg", 2, 3, 2, 1, divisor_override=5, ceil_mode=True),
    _pool("Max", 2, (2, 3), (3, 1)),
    *(_pool(f"Adaptive{kind}", dims, out) for kind in ("Max", "Avg") for dims in (1, 2) for out in (1, 2, 3, 5)),
    _pool("AdaptiveAvg", 2, (None, 2)),
    _pool("AdaptiveAvg", 2, (13, 9)),  # larger than the input
    _pool("AdaptiveMax", 2, (4, 3)),
    case("MaxPool2d without a batch", lambda: nn.MaxPool2d(2, ceil_mode=True), (3, 5, 7), draw=tied),
    case("AvgPool2d without a batch", lambda: nn.AvgPool2d(2), (3, 6, 6)),
]


@pytest.mark.parametrize(("layer", "table"), everywhere(CASES, TABLES), ids=str)
def test_pooling_is_torchs_ties_included(layer: Case, table: str) -> None:
    assert decomposed(layer, TABLES[table]()) > 40


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_pooling_on_a_runtime(runtime: str) -> None:
    layers = [
        _pool("Max", 1, 3, 2, 1, ceil_mode=True),
        _pool("Max", 2, 3, 2, 1),
        _pool("Max", 2, 2, 2, ceil_mode=True),
        _pool("Max", 2, 3, 1, 1, dilation=2),
        _pool("Avg", 1, 3, 2, 1, ceil_mode=True),
        _pool("Avg", 2, 3, 2, 1, count_include_pad=False),
    ]
    assert exported(on(runtime, layers), runtime) > 500


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_adaptive_pooling_on_a_runtime(runtime: str) -> None:
    layers = [_pool(f"Adaptive{kind}", dims, out) for kind in ("Max", "Avg") for dims in (1, 2) for out in (1, 3)]
    assert exported(on(runtime, layers), runtime) > 500
