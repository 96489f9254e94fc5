"""Layers that are replaced whole while a graph is traced, because their operators are not ones to trace.

The eager reference that a graph is checked against runs without this, on torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edgepfl.errors import ExportError
from exporters import padding
from exporters.recurrent import LAYERS, recurrent


class Layers(TorchFunctionMode):
    """While it is entered, modules call these instead of torch's own functions."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the function gives
        """See :class:`torch.overrides.TorchFunctionMode`."""
        return _HANDLERS.get(func, func)(*args, **(kwargs or {}))


def _recurrent(kind: str, original: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401  torch's own
    if not isinstance(args[3], bool):  # the weights stand there, after the batch sizes
        raise ExportError(
            "packed sequences cannot be exported: their shape depends on the data",
            where=f"torch.{kind}",
            remedy="Pad the sequences, and mask the outputs",
        )
    if _projects(args):
        return original(*args)  # with a projection: torch's formulas, step by step
    return recurrent(kind, *args)


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Circular padding without writing in place."""
    if mode == "circular":
        return padding.pad(padding.circular, x, pad)
    return functional.pad(x, pad, mode, value)


def _one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
    """Without looking at the values, as torch does."""
    if num_classes < 1:
        raise ExportError(
            "one_hot without a number of classes cannot be exported: it would depend on the data",
            where="torch.nn.functional.one_hot",
            remedy="Give num_classes",
        )
    return (classes.unsqueeze(-1) == torch.arange(num_classes)).to(torch.int64)


def _projects(args: Sequence[Any]) -> bool:
    weights, has_biases, num_layers, bidirectional = args[2], args[3], args[4], args[7]
    return bool(len(weights) == (5 if has_biases else 3) * num_layers * (2 if bidirectional else 1))


_HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.one_hot: _one_hot,
    functional.pad: _pad,
    **{getattr(torch._VF, kind): partial(_recurrent, kind, getattr(torch._VF, kind)) for kind in LAYERS},  # noqa: SLF001  what nn's layers call
}
