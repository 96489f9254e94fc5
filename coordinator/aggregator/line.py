"""The line between ranks that torchrun started: gloo for what lies in memory, NCCL for what lies on GPUs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from coordinator.aggregator.crew import Alone, Line, Scattered
from coordinator.aggregator.meeting import PAUSE, Keys, agreed
from edgepfl.errors import ConfigError
from edgepfl.tree import Tensor

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)
"""How long a rank waits in an exchange for one that still lives: as long as its part of the work may take longer."""


class Torch:
    """A :class:`~coordinator.aggregator.crew.Line` of torch.distributed."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.ranks = distributed.get_world_size()

    def to_all(self, tensor: Tensor) -> list[Tensor]:
        """See :class:`~coordinator.aggregator.crew.Line`."""
        found = [torch.empty_like(tensor) for _ in range(self.ranks)]
        _exchanged(lambda: distributed.all_gather(found, tensor))
        return found

    def to_first(self, tensor: Tensor) -> list[Tensor]:
        """See :class:`~coordinator.aggregator.crew.Line`."""
        found = [torch.empty_like(tensor) for _ in range(self.ranks)] if self.rank == 0 else None
        _exchanged(lambda: distributed.gather(tensor, found, dst=0))
        return found or []

    def from_first(self, tensor: Tensor) -> Tensor:
        """See :class:`~coordinator.aggregator.crew.Line`."""
        found = tensor.contiguous()
        _exchanged(lambda: distributed.broadcast(found, src=0))
        return found


@contextmanager
def opened(device: str) -> Iterator[tuple[Line, str]]:
    """The line to the other ranks, and this rank's own device.

    Args:
        device: "cpu" or "cuda".

    Raises:
        ConfigError: there is no such device, or only half of what torchrun says of the others is known.
        Scattered: the others are not there.
    """
    own = _own_device(device)
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield Alone(), own
        return
    _meet("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    try:
        yield Torch(), own
    finally:
        distributed.destroy_process_group()


def _meet(backend: str) -> None:
    try:
        store, rank, ranks = next(rendezvous("env://", timeout=PATIENCE))
        _exchanged(lambda: _join(backend, store, rank, ranks))
    except ValueError as error:
        raise ConfigError(
            f"WORLD_SIZE is set, and nothing says how to find the other ranks ({str(error)[:200]})",
            where="environment",
            remedy="Start it with torchrun, or unset WORLD_SIZE to run one rank",
        ) from error


def _join(backend: str, store: Keys, rank: int, ranks: int) -> None:
    """Form the group under a name that no rank of an earlier start knows."""
    name = agreed(
        store,
        rank,
        ranks,
        nonce=secrets.token_hex(8),
        patience=PATIENCE.total_seconds(),
        clock=time.monotonic,
        pause=lambda: time.sleep(PAUSE),
    )
    own = distributed.PrefixStore(name, store)  # type: ignore[arg-type, attr-defined]  # torch exports neither by name
    distributed.init_process_group(backend, store=own, rank=rank, world_size=ranks, timeout=PATIENCE)


def _own_device(device: str) -> str:
    if device != "cuda":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if index >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no GPU {index} among {torch.cuda.device_count()}",
            where="device",
            remedy='Start as many processes as there are GPUs, or set device = "cpu"',
        )
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def _exchanged(exchange: Callable[[], T]) -> T:
    try:
        return exchange()
    except RuntimeError as error:  # torch's only word for a peer that is gone
        raise Scattered(f"another rank is gone ({str(error)[:200]})") from error
