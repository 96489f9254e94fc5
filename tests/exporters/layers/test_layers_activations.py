from __future__ import annotations

import pytest
import torch
from _layer_check import RUNTIMES, Call, Case, call, case, decomposed, exported, on, tied, wide
from torch import Tensor, nn
from torch.nn import functional


def _in_place(layer: nn.Module, x: Tensor) -> Tensor:
    return functional.relu(layer(x), inplace=True)


PIECEWISE = [
    case(kind.__name__, kind, (4, 7), draw=wide)
    for kind in (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh)
] + [
    case("PReLU of each channel", lambda: nn.PReLU(4), (3, 4, 5)),
    case("ReLU in place", lambda: Call(_in_place, nn.Linear(4, 3)), (2, 4)),
    case("Threshold", lambda: nn.Threshold(0.1, 2.0), (4, 7)),
    case("Softshrink", nn.Softshrink, (4, 7), draw=wide),
    case("Hardshrink", nn.Hardshrink, (4, 7), draw=wide),
]

SMOOTH = [
    case(kind.__name__, kind, (4, 7), draw=wide)
    for kind in (
        *(nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid),
        *(nn.LogSigmoid, nn.Tanhshrink),
    )
] + [
    case("GELU(tanh)", lambda: nn.GELU("tanh"), (4, 7), draw=wide),
    case("Softplus(2, 3)", lambda: nn.Softplus(2, 3), (4, 7), draw=wide),
    case("Softmax", lambda: nn.Softmax(-1), (4, 7)),
    case("LogSoftmax", lambda: nn.LogSoftmax(1), (4, 7, 3)),
    case("GLU", lambda: nn.GLU(1), (4, 6, 3)),
    call("logsumexp", lambda x: torch.logsumexp(x, 1), (4, 5)),
]

KINKS = [
    case(f"{kind.__name__} at its kinks", kind, (4, 7), draw=lambda rng, shape: 3 * tied(rng, shape))
    for kind in (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid)
]


@pytest.mark.parametrize("layer", [*PIECEWISE, *SMOOTH, *KINKS], ids=str)
def test_activations_are_torchs(layer: Case) -> None:
    assert decomposed(layer) > 10


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_activations_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, [*PIECEWISE, *KINKS]), runtime) > 500
    assert exported(on(runtime, SMOOTH), runtime) > 500
