"""Rows in slabs, as large as they are in use."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coordinator.fusion._blocks import BLOCK, combined, products, squares, tiles
from coordinator.fusion._slabs import Slabs, rows_of_slab
from edgepfl.algorithms._fusion import Columns


@pytest.mark.parametrize(
    ("width", "rows", "mib"),
    [(10, 1_024, 0.04), (2_000, 263, 2), (100_000, 64, 24.4), (1_000_000, 8, 30.5), (10**8, 1, 381)],
)
def test_a_slab_is_neither_small_nor_great(width: int, rows: int, mib: float) -> None:
    row = torch.empty(1).expand(width) if width > 10**6 else torch.empty(width)
    assert rows_of_slab(row) == rows
    assert rows * width * 4 / 2**20 == pytest.approx(mib, rel=0.03)


def test_rows_are_where_they_were_put() -> None:
    slabs, rows = Slabs(torch.zeros(20_000)), torch.arange(4.0)[:, None] * torch.ones(20_000)
    assert slabs.rows == 64
    assert [slabs.add(), slabs.add(), slabs.add()] == [0, 1, 2]
    ids = torch.tensor([130, 3, 64, 191])
    slabs.write(ids, rows)
    assert torch.equal(slabs.read(ids), rows)
    assert torch.equal(slabs.read(ids.flip(0)), rows.flip(0))
    before = slabs.dump()
    slabs.write(torch.tensor([65]), rows[:1])
    after = slabs.dump()
    assert [after[name] is before[name] for name in before] == [True, False, True]
    slabs.remove(1)
    assert slabs.add() == 3
    assert torch.equal(Slabs(torch.zeros(20_000), slabs.dump()).read(ids[:2]), rows[:2])


@pytest.mark.parametrize("count", [3, 3000])
def test_blocks_cover_all_columns_once(count: int) -> None:
    found = list(tiles(100_000, count, torch.device("cpu")))
    assert [block.start for block in found[1:]] == [block.stop for block in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, 100_000)
    assert all(count * (block.stop - block.start) <= max(BLOCK, 64 * count) for block in found)


def test_products_in_double_precision_are_those_of_displacements(device: str) -> None:
    """Rows far from 0 and near each other: their inner products in single precision would be noise."""
    rng = np.random.default_rng(1)
    first = rng.normal(size=5000).astype(np.float32) + 1000
    rows = (first + rng.normal(size=(7, 5000))).astype(np.float32)
    out = rng.random(5000) < 0.2
    columns = Columns(torch.tensor(first, device=device), torch.tensor(out, device=device))
    tensor = torch.tensor(rows, device=device)
    apart = (rows.astype(float) - first) * ~out
    found = products(tensor[:2], [tensor[:3], tensor[3:]], columns)
    np.testing.assert_allclose(found.cpu(), apart[:2] @ apart.T, rtol=1e-12)
    np.testing.assert_allclose(squares(tensor).cpu(), (rows.astype(float) ** 2).sum(1), rtol=1e-12)
    weights, means = rng.normal(size=(2, 7)), rng.normal(size=7)
    ours, theirs = (torch.tensor(numbers, device=device) for numbers in (weights, means))
    made = combined(ours, theirs, [tensor[:3], tensor[3:]], columns)
    shifted = rows.astype(float) - first
    np.testing.assert_allclose(made.cpu(), first + np.where(out, means @ shifted, weights @ shifted), rtol=1e-7)
