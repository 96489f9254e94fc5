from __future__ import annotations

import numpy as np
import pytest
import torch
from _layer_check import RUNTIMES, Case, below, call, case, decomposed, exported, on
from torch import Tensor, nn
from torch.nn import functional

from exporters.lookup import ONE_HOT_LIMIT, add_rows


def _picked(x: Tensor) -> Tensor:
    return x[:, [0, 2, 2, -1]] + x.index_select(1, torch.tensor([2, 0, 0, 1]))


CASES = [
    case("Embedding", lambda: nn.Embedding(11, 4), (3, 5), draw=below(11)),
    case("Embedding with padding", lambda: nn.Embedding(11, 4, padding_idx=2), (3, 5), draw=below(11)),
    case("Embedding by frequency", lambda: nn.Embedding(11, 4, scale_grad_by_freq=True), (3, 5), draw=below(11)),
    case("Embedding of 5000", lambda: nn.Embedding(5000, 4), (3, 5), draw=below(5000)),
    case("Embedding of 5000, often", lambda: nn.Embedding(5000, 4), (3, 5), draw=below(3)),
    call("constant indices", _picked, (2, 3, 4)),
    call("several indices", lambda x: x[torch.tensor([[0], [1]]), :, torch.tensor([0, 3, 0])], (2, 3, 4)),
    call("neighbouring indices", lambda x: x[:, torch.tensor([0, 0, 2]), torch.tensor([1, 1, -1])], (2, 3, 4)),
    call("gather", lambda x: x.gather(2, torch.tensor([0, 1, 0]).expand(2, 3, 3)), (2, 3, 4)),
    call("scatter_add", lambda x: x.new_zeros(2, 2, 4).index_add(1, torch.tensor([0, 1, 1]), x), (2, 3, 4)),
    call("one_hot", lambda x: functional.one_hot(x.argmax(2), 4) * x, (2, 4, 4)),
]


@pytest.mark.parametrize("layer", CASES, ids=str)
def test_look_ups_are_torchs(layer: Case) -> None:
    assert decomposed(layer) > 20


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_look_ups_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, CASES), runtime) > 5_000


@pytest.mark.parametrize("count", [7, ONE_HOT_LIMIT // 6 + 1])
def test_rows_that_share_a_place_are_added_by_a_product_or_by_a_scatter(count: int) -> None:
    rng = np.random.default_rng(0)
    rows, places = torch.from_numpy(rng.standard_normal((6, 3))), torch.tensor([2, 0, 2, 2, 6, 0])
    wanted = torch.zeros(count, 3, dtype=torch.float64).index_add(0, places, rows)
    torch.testing.assert_close(add_rows(rows, places, count), wanted)
    assert wanted[2].abs().sum() > 0
