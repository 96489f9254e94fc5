from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _layer_check import RUNTIMES, Call, Case, call, case, decomposed, exported, on, positive, tied
from torch import Tensor, nn
from torch.nn import functional

from edgepfl.errors import ExportError

OF_ONE: dict[str, Callable[[Tensor], Any]] = {
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "atan": lambda x: x.atan(),
    "cube": lambda x: x.pow(3),
    "cumprod": lambda x: x.cumprod(1),
    "cumsum": lambda x: x.cumsum(1),
    "detach": lambda x: x * x.detach(),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "einsum of pairs": lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 1]),
    "erf": lambda x: x.erf(),
    "exp": lambda x: x.exp() + x.expm1(),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "log1p": lambda x: x.square().log1p(),
    "logsumexp": lambda x: x.logsumexp(2),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "mean": lambda x: x.mean((0, 2)),
    "norm 3": lambda x: x.norm(p=3, dim=2),
    "prod": lambda x: x.prod(1),
    "reciprocal": lambda x: 1 / (x.square() + 1),
    "rsqrt": lambda x: (x.square() + 1).rsqrt(),
    "sin": lambda x: x.sin() + x.cos(),
    "softmax of a masked": lambda x: x.masked_fill(torch.ones(3, 4).triu(1).bool(), -torch.inf).softmax(-1),
    "std": lambda x: x.std((1, 2), unbiased=False) + x.std(),
    "var": lambda x: x.var(1),
    "where": lambda x: torch.where(x > 0, x, 2 * x),
}

COMPARED: dict[str, Callable[[Tensor], Any]] = {
    "abs": lambda x: x.abs(),
    "amax": lambda x: x.amax(1),  # ties share the gradient
    "amin": lambda x: x.amin((1, 2)),
    "clamp": lambda x: x.clamp(-1.0, 0.5),
    "clamp min": lambda x: x.clamp(min=0.0),
    "max": lambda x: x.max(),
    "max of dim": lambda x: x.max(1).values,  # the first takes it all
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "min of dim": lambda x: x.min(2).values,
    "norm": lambda x: (x * torch.tensor([0.0, 1, 1, 1])).norm(dim=1),  # 0 where it has no slope
    "norm 1": lambda x: x.norm(p=1, dim=1),
    "sign": lambda x: x * x.sign(),
    "sort": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(2, 2).values,
}

CASES = [
    case("Linear", lambda: nn.Linear(5, 3), (4, 5)),
    case("Linear of a sequence", lambda: nn.Linear(5, 3, bias=False), (4, 2, 5)),
    case("Bilinear", lambda: nn.Bilinear(3, 4, 2), (4, 3), (4, 4)),
    case("residual", lambda: Call(lambda layer, x: x + layer(x), nn.Linear(4, 4)), (3, 4)),
    *(call(name, function, (2, 3, 4)) for name, function in OF_ONE.items()),
    call("bmm", torch.bmm, (2, 3, 4), (2, 4, 5)),
    call("mv", torch.mv, (3, 4), (4,)),
    call("broadcast", lambda x, y: x / y - y * x, (3, 4), (1, 4), draw=positive),
    call("log", lambda x: x.log() + x.sqrt(), (3, 4), draw=positive),
    call("pow", lambda x, y: x**y + x**1.7 + 2.0**x, (3, 4), (3, 4), draw=positive),
    call("pairwise distance", functional.pairwise_distance, (3, 4), (3, 4)),
]

SMOOTH_TIES = [
    call(f"{name}, tied", f, (2, 3, 4), draw=tied) for name, f in COMPARED.items() if name not in {"sort", "topk"}
]
DISTINCT = [call(name, function, (2, 3, 4)) for name, function in COMPARED.items()]


@pytest.mark.parametrize("layer", [*CASES, *DISTINCT, *SMOOTH_TIES], ids=str)
def test_arithmetic_is_torchs(layer: Case) -> None:
    assert decomposed(layer) > 5


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_arithmetic_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, CASES), runtime) > 500


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_comparisons_and_their_ties_on_a_runtime(runtime: str) -> None:
    kept = [each for each in DISTINCT if runtime == "onnx" or each.name != "sort"]
    assert exported(on(runtime, [*kept, *SMOOTH_TIES]), runtime) > 500


def test_sorting_is_refused_by_executorch_with_its_operator() -> None:
    (layer,) = (each for each in DISTINCT if each.name == "sort")
    with pytest.raises(ExportError, match="operator sort has no kernel in runtime executorch") as caught:
        exported(layer, "executorch")
    assert "onnx alone" in caught.value.remedy
