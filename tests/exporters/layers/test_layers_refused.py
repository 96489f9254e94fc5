from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _layer_check import Call, call, case, decomposed
from torch import Tensor, nn
from torch.nn import functional

from edgepfl.errors import ExportError


def _branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def _ctc(x: Tensor) -> Tensor:
    targets = torch.ones(2, 2, dtype=torch.int64)
    return functional.ctc_loss(x.log_softmax(2), targets, torch.tensor([5, 5]), torch.tensor([2, 2]))


REFUSED: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...], str, str]] = {
    "branch": (_branch, (3, 4), "branches on the value", "torch.where"),
    "cdist": (lambda x: torch.cdist(x, x + 1), (3, 4), "_cdist_forward", "by broadcasting"),
    "ctc": (_ctc, (5, 2, 4), "_ctc_loss", "cross-entropy"),
    "embedding bag": (
        lambda x: functional.embedding_bag(torch.tensor([[0, 1]]), x, mode="sum"),
        (3, 4),
        "_embedding_bag",
        "nn.Embedding",
    ),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (3, 8), "complex numbers", "spectrum beforehand"),
    "grid_sample": (
        lambda x: functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
        (1, 2, 4, 4),
        "grid_sampler_2d",
        "nn.Upsample",
    ),
    "inverse": (lambda x: torch.linalg.inv(x + 4 * torch.eye(3)), (3, 3), "linalg_inv_ex", "matrices"),
    "lgamma": (lambda x: (x * x + 1).lgamma(), (3, 4), "lgamma", "elementary"),
    "mask": (lambda x: x[x > 0], (3, 4), "indexing by a mask", "torch.where"),
    "max_unpool": (
        lambda x: functional.max_unpool1d(*functional.max_pool1d(x, 2, return_indices=True), [2]),
        (2, 3, 8),
        "indices are not kept",
        "nn.Upsample",
    ),
    "median": (lambda x: x.median(1).values, (3, 4), "median", "mean"),
    "one_hot": (lambda x: functional.one_hot(x.argmax(1)) * 1.0, (3, 4), "number of classes", "num_classes"),
    "pool3d": (lambda x: functional.avg_pool3d(x, 2), (1, 2, 4, 4, 4), "one and two dimensions", "axis"),
    "svd": (torch.linalg.svdvals, (3, 4), "_linalg_svd", "matrices"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_refused_with_its_module_and_a_way_out(name: str) -> None:
    function, shape, reason, remedy = REFUSED[name]
    with pytest.raises(ExportError, match=reason) as caught:
        decomposed(call(name, function, shape))
    assert "module layer (Call)" in caught.value.where
    assert remedy in caught.value.remedy


def test_a_refusal_names_the_innermost_module() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft(x).abs()  # type: ignore[no-any-return]  # torch's own

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), Call(lambda inner, x: inner(x), Spectrum()))

    with pytest.raises(ExportError, match="complex") as caught:
        decomposed(case("spectrum", make, (2, 4)))
    assert caught.value.where == "module layer.1.inner.0 (Spectrum), aten._fft_r2c"
