from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from _layer_check import RUNTIMES, Case, call, case, decomposed, exported, on, positive
from torch import nn
from torch.nn import functional


def _moved(kind: Callable[..., Any], **settings: Any) -> Callable[[], nn.Module]:  # noqa: ANN401  whatever the layer takes
    """A layer in evaluation with statistics that are not the first ones."""

    def make() -> nn.Module:
        layer: nn.Module = kind(4, **settings)
        layer.running_mean.normal_()  # type: ignore[operator]  # a buffer
        layer.running_var.uniform_(0.5, 2)  # type: ignore[operator]  # likewise
        return layer.eval()

    return make


CASES = [
    case("BatchNorm1d", _moved(nn.BatchNorm1d), (3, 4)),
    case("BatchNorm1d along time", _moved(nn.BatchNorm1d), (3, 4, 5)),
    case("BatchNorm2d", _moved(nn.BatchNorm2d, affine=False), (3, 4, 5, 3)),
    case("GroupNorm", lambda: nn.GroupNorm(2, 4), (3, 4, 5, 3)),
    case("GroupNorm of features", lambda: nn.GroupNorm(2, 8), (3, 8)),
    case("GroupNorm, not affine", lambda: nn.GroupNorm(2, 4, affine=False), (3, 4, 5)),
    case("LayerNorm", lambda: nn.LayerNorm(5), (3, 4, 5)),
    case("LayerNorm of two axes", lambda: nn.LayerNorm((4, 5)), (3, 4, 5)),
    case("LayerNorm, not affine", lambda: nn.LayerNorm(5, elementwise_affine=False), (3, 5)),
    case("RMSNorm", lambda: nn.RMSNorm(5), (3, 4, 5)),
    case("RMSNorm of two axes", lambda: nn.RMSNorm((4, 5), eps=1e-3), (3, 4, 5)),
    case("InstanceNorm1d", lambda: nn.InstanceNorm1d(4, affine=True), (3, 4, 7)),
    case("InstanceNorm2d", lambda: nn.InstanceNorm2d(4), (3, 4, 5, 3)),
    case("InstanceNorm2d with statistics", _moved(nn.InstanceNorm2d, track_running_stats=True), (3, 4, 5, 3)),
    call("normalize", lambda x: functional.normalize(x, dim=1), (3, 4, 5)),
    call("normalize, p=1", lambda x: functional.normalize(x, p=1, dim=-1), (3, 4), draw=positive),
    call("cosine_similarity", functional.cosine_similarity, (3, 4), (3, 4)),
    case("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), (2, 4)),
    case("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), (2, 4)),
]


@pytest.mark.parametrize("layer", CASES, ids=str)
def test_normalisation_is_torchs(layer: Case) -> None:
    assert decomposed(layer) > 10


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_normalisation_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, CASES), runtime) > 500
