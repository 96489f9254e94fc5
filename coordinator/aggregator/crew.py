"""The processes of an aggregator, its ranks, as each of them sees the others.

Nothing is pickled: what crosses are tensors of numbers and of bytes.  Before each exchange the ranks tell each other
what they are about to do, so that a rank whose part fails can say so where the others wait for it, and nobody waits for
ever.  Sums are made of all ranks' terms in the order of the ranks, hence the same bits in every rank and every time,
whatever the backend's own sums would do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeVar

import torch

from coordinator.aggregator.job import ERROR_LIMIT
from edgepfl.errors import RunError, StoreError
from edgepfl.tree import Tensor

log = logging.getLogger(__name__)
T = TypeVar("T")
_TEXT = 2 * ERROR_LIMIT  # bytes


class Line(Protocol):
    """What carries tensors between the ranks.  Every rank calls the same, with tensors of the same shape and dtype."""

    @property
    def rank(self) -> int:
        """Which one this is, from 0."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def to_all(self, tensor: Tensor) -> list[Tensor]:
        """Everyone's tensor, in the order of the ranks."""
        ...

    def to_first(self, tensor: Tensor) -> list[Tensor]:
        """Likewise at rank 0; nothing elsewhere."""
        ...

    def from_first(self, tensor: Tensor) -> Tensor:
        """Rank 0's tensor."""
        ...


class Alone:
    """The only rank."""

    rank = 0
    ranks = 1

    def to_all(self, tensor: Tensor) -> list[Tensor]:
        """See :class:`Line`."""
        return [tensor]

    def to_first(self, tensor: Tensor) -> list[Tensor]:
        """See :class:`Line`."""
        return [tensor]

    def from_first(self, tensor: Tensor) -> Tensor:
        """See :class:`Line`."""
        return tensor


class Scattered(Exception):
    """A rank is gone, or the ranks do not do the same: all of them have to be started again."""


class _Elsewhere(Exception):
    """The part of another rank failed."""


class _Next(IntEnum):
    """What a rank is about to do."""

    SUM = 1
    COLLECT = 2
    TELL = 3
    END = 4
    FAIL = 5


class _Fault(IntEnum):
    NONE = 0
    RUN = 1
    STORE = 2


class Crew:
    """One rank, and through it the others.

    Args:
        line: to them.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self.rank = line.rank
        self.ranks = line.ranks

    def across(self, partial: Tensor) -> Tensor:
        """The sum of every rank's tensor, in float64 and the order of the ranks, in the tensor's own dtype.

        Raises:
            Scattered: the others are gone.
        """
        self._meet(_Next.SUM, partial.numel())
        terms = self._line.to_all(partial.double().contiguous())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.to(partial.dtype)

    def collect(self, data: bytes) -> list[bytes]:
        """Everyone's bytes at rank 0, in the order of the ranks; nothing elsewhere.

        Raises:
            Scattered: the others are gone.
        """
        sizes = self._meet(_Next.COLLECT, len(data))
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        padded[: len(data)] = _numbers(data)
        return [_bytes(part, size) for part, size in zip(self._line.to_first(padded), sizes, strict=False)]

    def told(self, data: bytes) -> bytes:
        """Rank 0's bytes, within a part of :meth:`together`.

        Raises:
            Scattered: the others are gone.
        """
        self._meet(_Next.TELL)
        return self.share(data)

    def share(self, data: bytes = b"") -> bytes:
        """Rank 0's bytes, between those parts: nobody can say that it fails.

        Raises:
            Scattered: the others are gone.
        """
        size = int(self._line.from_first(torch.tensor([len(data)]))[0])
        mine = _numbers(data) if self.rank == 0 else torch.zeros(size, dtype=torch.uint8)
        return _bytes(self._line.from_first(mine), size) if size else b""

    def together(self, part: Callable[[], T]) -> T:
        """Do this rank's part of something; where one rank's part fails, it fails in all of them.

        Raises:
            Scattered: the others are gone.
            StoreError: a rank's storage failed.
            RunError: anything else went wrong in a rank.
        """
        mine: Exception | None = None
        try:
            result = part()
            self._meet(_Next.END)
        except Scattered:
            raise
        except _Elsewhere:
            pass
        except Exception as error:  # whatever it is, the other ranks must hear of it
            log.debug("rank %d failed", self.rank, exc_info=True)
            mine = error
            self._tell_of_failure()
        else:
            return result
        raise self._reason(mine) from mine

    def _tell_of_failure(self) -> None:
        try:
            self._meet(_Next.FAIL)
        except _Elsewhere:
            return

    def _reason(self, mine: Exception | None) -> RunError | StoreError:
        """The first rank's that failed."""
        fault = _Fault.NONE if mine is None else _Fault.STORE if isinstance(mine, StoreError) else _Fault.RUN
        name = "" if mine is None or isinstance(mine, RunError | StoreError) else f"{type(mine).__name__}: "
        text = f"{name}{mine}".encode(errors="replace")[: _TEXT - 2] if mine is not None else b""
        note = torch.zeros(_TEXT, dtype=torch.uint8)
        note[: len(text) + 1] = _numbers(bytes([fault]) + text)
        for each in self._line.to_all(note):
            said = _bytes(each, _TEXT).rstrip(b"\0")
            if said:
                kind = StoreError if said[0] == _Fault.STORE else RunError
                return kind(said[1:].decode(errors="replace")[:ERROR_LIMIT])
        raise Scattered("no rank says why it failed")

    def _meet(self, doing: _Next, size: int = 0) -> list[int]:
        """Everyone's size, if all are about to do the same."""
        heads = [head.tolist() for head in self._line.to_all(torch.tensor([int(doing), size]))]
        if any(head[0] == _Next.FAIL for head in heads):
            raise _Elsewhere
        sizes = [head[1] for head in heads]
        if any(head[0] != doing for head in heads) or (doing is _Next.SUM and len(set(sizes)) > 1):
            raise Scattered(f"the ranks do not do the same: {heads}")
        return sizes


def _numbers(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def _bytes(numbers: torch.Tensor, size: int) -> bytes:
    return numbers[:size].numpy().tobytes()
