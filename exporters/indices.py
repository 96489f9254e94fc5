"""Which whole numbers a model takes: where they are looked up tells how many there are."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from edgepfl.plan import ExampleSpec

_Table = nn.Embedding | nn.EmbeddingBag


def bounded(specs: Sequence[ExampleSpec], module: nn.Module, batch: int) -> tuple[ExampleSpec, ...]:
    """The inputs, of whose whole numbers it is told how many there are where the user did not.

    They are indices of the smallest embedding that looks this input up; where none does so at once, of the smallest of
    all; and without embeddings flags, 0 or 1.

    Args:
        specs: what one example has of each input.
        module: takes them.
        batch: rows of a minibatch.
    """
    if not any(_open(spec) for spec in specs):
        return tuple(specs)
    x = [torch.zeros(batch, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs]
    sizes = _sizes(module, x)
    smallest = min((_rows(part) for part in module.modules() if isinstance(part, _Table)), default=2)
    return tuple(
        ExampleSpec(spec.shape, spec.dtype, high=min(found, default=smallest)) if _open(spec) else spec
        for spec, found in zip(specs, sizes, strict=True)
    )


def _open(spec: ExampleSpec) -> bool:
    return spec.dtype == "int64" and not spec.high


def _rows(table: nn.Module) -> int:
    rows: int = table.num_embeddings  # type: ignore[assignment]  # torch types it as anything
    return rows


def _sizes(module: nn.Module, x: Sequence[Tensor]) -> list[list[int]]:
    """Of each input, the rows of the embeddings that are called with its own memory."""
    found: list[list[int]] = [[] for _ in x]
    places = {tensor.untyped_storage().data_ptr(): i for i, tensor in enumerate(x)}

    def look(part: nn.Module, arguments: tuple[object, ...]) -> None:
        first = arguments[0] if isinstance(part, _Table) and arguments else None
        if isinstance(first, Tensor) and (place := places.get(first.untyped_storage().data_ptr())) is not None:
            found[place].append(_rows(part))

    modes = [(part, part.training) for part in module.modules()]
    hook = register_module_forward_pre_hook(look)
    try:
        with torch.no_grad(), contextlib.suppress(Exception):  # which is told when the module is run for good
            module.eval()(*x)
    finally:
        hook.remove()
        for part, mode in modes:
            part.training = mode
    return found
