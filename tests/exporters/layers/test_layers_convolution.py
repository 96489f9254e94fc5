from __future__ import annotations

import itertools
from typing import Any

import pytest
from _layer_check import RUNTIMES, Case, case, decomposed, everywhere, exported, on
from torch import nn

from exporters.decompositions import complete
from exporters.native import onnx_table
from exporters.xnnpack_layers import table as xnnpack_table

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # torch's own, of the reference

TABLES = {"everywhere": complete, "onnx": onnx_table, "executorch": xnnpack_table}


def _conv(dims: int, *, transposed: bool = False, channels: tuple[int, int] = (4, 6), **settings: Any) -> Case:  # noqa: ANN401  whatever the layer takes
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    shape = (2, channels[0], *(9, 7)[:dims])
    name = ",".join(f"{key}={value}" for key, value in settings.items())
    return case(f"{kind.__name__}({name})", lambda: kind(*channels, **settings), shape)


ORDINARY = [
    *(
        _conv(dims, kernel_size=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
        for dims, kernel, stride, padding, dilation, groups in itertools.product(
            (1, 2), (1, 3), (1, 2), (0, 2), (1, 2), (1, 2)
        )
    ),
    _conv(2, channels=(4, 8), kernel_size=3, groups=4, padding=1),  # depthwise, with a multiplier
    _conv(2, kernel_size=(3, 2), stride=(1, 3), padding=(0, 1), dilation=(2, 1)),
    _conv(1, kernel_size=4, padding="same"),  # one more at the end
    _conv(2, kernel_size=3, dilation=2, padding="same", bias=False),
    *(
        _conv(dims, kernel_size=3, padding=2, padding_mode=mode)
        for dims in (1, 2)
        for mode in ("circular", "reflect", "replicate")
    ),
    case("Conv1d without a batch", lambda: nn.Conv1d(4, 6, 3, padding=1), (4, 9)),
    case("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), (2, 4, 7)),
]

TRANSPOSED = [
    *(
        _conv(dims, transposed=True, kernel_size=3, stride=stride, padding=padding, dilation=dilation, groups=groups)
        for dims, stride, padding, dilation, groups in itertools.product((1, 2), (1, 2, 3), (0, 1), (1, 2), (1, 2))
    ),
    _conv(1, transposed=True, kernel_size=3, stride=2, padding=1, output_padding=1),
    _conv(2, transposed=True, kernel_size=(4, 2), stride=(3, 2), output_padding=(2, 1), bias=False),
    _conv(1, transposed=True, kernel_size=3, stride=1, dilation=3, output_padding=2),  # more than a stride
    _conv(2, transposed=True, kernel_size=2, stride=3, padding=1, output_padding=1, groups=2),  # windows apart
]


@pytest.mark.parametrize(("layer", "table"), everywhere([*ORDINARY, *TRANSPOSED], TABLES), ids=str)
def test_convolution_is_torchs_for_every_runtimes_decompositions(layer: Case, table: str) -> None:
    assert decomposed(layer, TABLES[table]()) > 100


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_convolution_on_a_runtime(runtime: str) -> None:
    layers = [
        _conv(1, kernel_size=3, stride=2, padding=1, dilation=2, groups=2),
        _conv(2, kernel_size=3, stride=(2, 1), padding=(1, 0)),
        _conv(2, channels=(4, 4), kernel_size=3, groups=4, padding=1),
        _conv(1, kernel_size=4, padding="same"),
        _conv(1, kernel_size=3, padding=1, padding_mode="circular"),
        _conv(2, kernel_size=3, padding=1, padding_mode="reflect"),
        _conv(2, kernel_size=3, padding=1, padding_mode="replicate"),
        case("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), (2, 4, 7)),
    ]
    assert exported(on(runtime, layers), runtime) > 500


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_transposed_convolution_on_a_runtime(runtime: str) -> None:
    layers = [TRANSPOSED[-1], TRANSPOSED[-2], TRANSPOSED[-3], TRANSPOSED[-4], TRANSPOSED[10]]
    assert exported(on(runtime, layers), runtime) > 500
