"""Ranks in threads of this process, and what they hold joined to one again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from coordinator.aggregator.crew import Crew, Line, Scattered
from coordinator.aggregator.shards import span
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tensor, Tree, Trees

T = TypeVar("T")
PATIENCE = 30.0  # seconds; far more than anything here takes


class Table:
    """Where the threads lay down what they exchange."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks)
        self._cells: list[Tensor] = [None] * ranks

    def exchanged(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """Everyone's tensor."""
        self._cells[rank] = tensor.clone()
        try:
            self._barrier.wait(PATIENCE)
            found = list(self._cells)
            self._barrier.wait(PATIENCE)
        except threading.BrokenBarrierError as error:
            raise Scattered("another rank is gone") from error
        return found

    def leave(self) -> None:
        """What the others notice of a rank that died."""
        self._barrier.abort()


class Seat:
    """One thread's line."""

    def __init__(self, table: Table, rank: int) -> None:
        self._table = table
        self.rank = rank
        self.ranks = table.ranks

    def to_all(self, tensor: Tensor) -> list[Tensor]:
        found = self._table.exchanged(self.rank, tensor)
        assert len({(each.dtype, each.shape) for each in found}) == 1
        return found

    def to_first(self, tensor: Tensor) -> list[Tensor]:
        return self.to_all(tensor) if self.rank == 0 else self.to_all(tensor)[:0]

    def from_first(self, tensor: Tensor) -> Tensor:
        found = self._table.exchanged(self.rank, tensor)[0]
        return found.clone()


def lines(ranks: int) -> list[Line]:
    """The lines of so many threads."""
    table = Table(ranks)
    return [Seat(table, rank) for rank in range(ranks)]


def in_ranks(ranks: int, part: Callable[[Crew], T]) -> list[T]:
    """What each rank's thread gives; the first error is raised."""
    crews = [Crew(line) for line in lines(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(part, crew) for crew in crews]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, Scattered):
                raise error
        return [future.result() for future in futures]


def whole_of(parts: Sequence[Trees], like: Trees, *trees: dict[str, TensorSpec]) -> Trees:
    """The shards of a state as one, in the shapes of another.

    Args:
        parts: each rank's.
        like: what they are compared with.
        trees: the models whose rows a tensor's last dimension may be.
    """
    assert all({slot: set(part[slot]) for slot in part} == {slot: set(like[slot]) for slot in like} for part in parts)
    return {
        slot: Tree(
            {name: _whole([part[slot][name] for part in parts], tensor, name, trees) for name, tensor in tree.items()}
        )
        for slot, tree in like.items()
    }


def _whole(parts: list[Tensor], like: Tensor, name: str, trees: Sequence[dict[str, TensorSpec]]) -> Tensor:
    if all(part.shape == like.shape and torch.equal(part, parts[0]) for part in parts):
        return parts[0]
    if sum(part.numel() for part in parts) == like.numel() and all(part.ndim == 1 for part in parts) and like.ndim:
        candidates = [
            specs for specs in trees if name not in specs and sum(s.size for s in specs.values()) == like.numel()
        ]
        if not candidates:
            return torch.cat(parts).reshape(like.shape)
    joined = torch.cat(parts, -1)
    specs = next(specs for specs in trees if sum(spec.size for spec in specs.values()) == like.shape[-1])
    order = torch.cat([_columns(specs, rank, len(parts)) for rank in range(len(parts))])
    assert joined.shape == like.shape
    found = torch.empty_like(joined)
    found[..., order] = joined
    return found


def _columns(specs: dict[str, TensorSpec], rank: int, ranks: int) -> torch.Tensor:
    """The places of a rank's columns in a whole row."""
    found, at = [], 0
    for name in sorted(specs):
        here = span(specs[name].size, rank, ranks)
        found.append(torch.arange(at + here.start, at + here.stop))
        at += specs[name].size
    return torch.cat(found)
