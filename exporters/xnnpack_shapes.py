"""Rules for operators that move values and change none; see :mod:`exporters.xnnpack`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from exporters.xnnpack_emit import Emit, Rule, shape

aten = torch.ops.aten


def _view(target: Callable[..., Any]) -> Rule:
    """An operator that gives the same values in another shape."""

    def rule(emit: Emit, x: fx.Node, *args: Any) -> fx.Node:  # noqa: ANN401  aten's own arguments
        return emit.view(x, target(x.meta["val"], *args).shape)

    return rule


def _permute(emit: Emit, x: fx.Node, order: Sequence[int]) -> fx.Node:
    return emit.permute(x, [i % len(order) for i in order])


def _transpose(emit: Emit, x: fx.Node, first: int = 0, second: int = 1) -> fx.Node:
    order = list(range(len(shape(x))))
    if order:
        order[first], order[second] = order[second], order[first]
    return emit.permute(x, order)


def _clone(_emit: Emit, x: fx.Node, **_: Any) -> fx.Node:  # noqa: ANN401  aten's own options
    """Nothing is written in place, so nothing needs a copy but an output, which gets it at the end."""
    return x


def _expand(emit: Emit, x: fx.Node, size: Sequence[int], **_: Any) -> fx.Node:  # noqa: ANN401  likewise
    whole = x.meta["val"].expand(size).shape
    x = emit.view(x, [*[1] * (len(whole) - len(shape(x))), *shape(x)])
    return x if shape(x) == whole else emit.expand(x, whole)


def _slice(  # aten's own signature
    emit: Emit, x: fx.Node, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> fx.Node:
    dim %= len(shape(x))
    start, stop, step = slice(start, stop, step).indices(shape(x)[dim])
    stop = max(start, stop)
    if step == 1:
        return emit.slice(x, dim, start, stop)
    return every(emit, x, dim, start, -(-(stop - start) // step), step)


def every(emit: Emit, x: fx.Node, dim: int, start: int, count: int, step: int) -> fx.Node:
    """``count`` elements ``step`` apart: the first of each ``step`` in a row, for the delegate takes no step."""
    end = start + count * step
    missing = end - shape(x)[dim]
    x = emit.pad(x, dim, 0, missing) if missing > 0 else x
    x = emit.slice(x, dim, start, end)
    outer, inner = shape(x)[:dim], shape(x)[dim + 1 :]
    width = math.prod(inner)
    rows = emit.view(x, [math.prod(outer), count, step * width])
    return emit.view(emit.slice(rows, 2, 0, width), [*outer, count, *inner])


def _select(emit: Emit, x: fx.Node, dim: int, index: int) -> fx.Node:
    dim %= len(shape(x))
    index %= shape(x)[dim]
    return emit.view(emit.slice(x, dim, index, index + 1), [*shape(x)[:dim], *shape(x)[dim + 1 :]])


def _split(emit: Emit, x: fx.Node, sizes: Sequence[int] | int, dim: int = 0) -> list[fx.Node]:
    dim %= len(shape(x))
    length = shape(x)[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, length - at) for at in range(0, length, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [emit.slice(x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _unbind(emit: Emit, x: fx.Node, dim: int = 0) -> list[fx.Node]:
    return [_select(emit, x, dim, i) for i in range(shape(x)[dim])]


def _stack(emit: Emit, tensors: Sequence[fx.Node], dim: int = 0) -> fx.Node:
    dim %= len(shape(tensors[0])) + 1
    whole = shape(tensors[0])
    return _cat(emit, [emit.view(x, [*whole[:dim], 1, *whole[dim:]]) for x in tensors], dim)


def _cat(emit: Emit, tensors: Sequence[fx.Node], dim: int = 0) -> fx.Node:
    """In groups of at most five, each value copied once or twice: lowering would copy the first ones every time."""
    dim %= len(shape(tensors[0]))
    parts = [x for x in tensors if shape(x).numel()]
    while len(parts) > _TOGETHER:
        size = min(_TOGETHER, max(2, len(parts) - _TOGETHER + 1))
        if len(parts) < 2 * _TOGETHER:  # one group makes few enough
            parts = [emit.cat(parts[:size], dim), *parts[size:]]
        else:
            parts = [emit.cat(parts[i : i + size], dim) for i in range(0, len(parts), size)]
    return emit.cat(parts, dim)


_TOGETHER = 5


def _pad(emit: Emit, x: fx.Node, amounts: Sequence[int], fill: float = 0.0) -> fx.Node:
    """Less than nothing around it is a slice."""
    rank = len(shape(x))
    for i in range(0, len(amounts), 2):
        dim, before, after = rank - 1 - i // 2, amounts[i], amounts[i + 1]
        x = emit.slice(x, dim, max(0, -before), shape(x)[dim] + min(0, after))
        x = emit.pad(x, dim, max(0, before), max(0, after), fill)
    return x


SHAPES: Mapping[Any, Rule] = {
    **{
        target: _view(target)
        for target in (
            aten._unsafe_view.default,  # noqa: SLF001  aten's own name
            aten.reshape.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.unsqueeze.default,
            aten.view.default,
        )
    },
    aten.alias.default: _clone,
    aten.cat.default: _cat,
    aten.clone.default: _clone,
    aten.constant_pad_nd.default: _pad,
    aten.detach.default: _clone,
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.stack.default: _stack,
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.unbind.int: _unbind,
}
"""Operator to its rule."""
