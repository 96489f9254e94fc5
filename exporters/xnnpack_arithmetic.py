"""Rules for operators that compute; see :mod:`exporters.xnnpack`.

A comparison that is used as a mask becomes ``min(max(c (a - b), 0), 1)`` with ``c`` near the greatest float: 0 or 1
exactly, unless ``a`` and ``b`` are less than 1e-38 apart, where it is between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from exporters.xnnpack_emit import Emit, Rule, Value, shape

aten = torch.ops.aten

_STEEP = 3e38  # near the greatest float
_ADDED = 256  # terms that one product with as many ones adds
_CLASSES = 64  # a maximum over more stays on a portable kernel


def product(emit: Emit, left: fx.Node, right: fx.Node, bias: fx.Node | None = None) -> fx.Node:
    """``mm``: the delegate multiplies two computed matrices as a batch of one, and by a transposed one as a layer."""
    if right.target is aten.permute.default and "constant" not in right.meta:
        (weight,) = right.all_input_nodes
        return emit.node(aten.linear.default, left, weight, bias)
    if bias is not None:
        return emit.binary(aten.add.Tensor, product(emit, left, right), bias)
    (rows, inner), columns = shape(left), shape(right)[1]
    batched = emit(aten.bmm.default, emit.view(left, [1, rows, inner]), emit.view(right, [1, inner, columns]))
    return emit.view(batched, [rows, columns])


def _addmm(emit: Emit, start: fx.Node, left: fx.Node, right: fx.Node, *, beta: float = 1, alpha: float = 1) -> fx.Node:
    if alpha == beta == 1 and shape(start) == shape(right)[1:]:
        return product(emit, left, right, start)
    return _sum_of(aten.add.Tensor, emit, _times(emit, start, beta), product(emit, left, right), alpha=alpha)


def _sum_of(target: Any, emit: Emit, a: Value, b: Value, *, alpha: float = 1) -> fx.Node:  # noqa: ANN401  an operator
    """``a + alpha b`` or ``a - alpha b``."""
    if alpha == -1:
        target, alpha = (aten.sub.Tensor if target is aten.add.Tensor else aten.add.Tensor), 1
    return emit.binary(target, a, _times(emit, b, alpha))


def _reversed(emit: Emit, a: Value, b: Value, alpha: float = 1) -> fx.Node:
    return emit.binary(aten.sub.Tensor, b, _times(emit, a, alpha))


def _times(emit: Emit, x: Value, factor: float) -> Value:
    return x if factor == 1 else emit.binary(aten.mul.Tensor, x, factor)


def _binary(target: Any) -> Rule:  # noqa: ANN401  an operator
    return lambda emit, a, b: emit.binary(target, a, b)


def _unary(target: Any) -> Rule:  # noqa: ANN401  likewise
    return lambda emit, x, *args: emit.unary(target, x, *args)


def total(emit: Emit, x: fx.Node, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> fx.Node | None:  # noqa: ANN401, FBT001, FBT002  aten's own signature
    """``sum`` as a product with ones."""
    if not emit.floating(x):
        return None
    rank = len(shape(x))
    over = sorted({d % rank for d in dims}) if dims and rank else list(range(rank))
    size = [1 if i in over else n for i, n in enumerate(shape(x)) if keepdim or i not in over]
    count = math.prod(shape(x)[i] for i in over)
    rest = shape(x).numel() // count
    if over == list(range(len(over))) and rest > 1:
        return emit.view(_down(emit, x, count, rest), size)
    order = [i for i in range(rank) if i not in over] + over
    return emit.view(_across(emit, emit.permute(x, order), count, rest), size)


def _down(emit: Emit, x: fx.Node, count: int, rest: int) -> fx.Node:
    """The sum over ``count`` rows, in steps: one step would need as many ones as there are rows."""
    while count > 1:
        step = _divisor(count)
        count //= step
        x = product(emit, _ones(emit, 1, step), emit.view(x, [step, count * rest]))
    return x


def _across(emit: Emit, x: fx.Node, count: int, rest: int) -> fx.Node:
    """The sum over ``count`` columns, likewise."""
    while count > 1:
        step = _divisor(count)
        count //= step
        x = product(emit, emit.view(x, [rest * count, step]), _ones(emit, step, 1))
    return x


def _divisor(count: int) -> int:
    """The smallest divisor whose square is not less than the count; a small count whole."""
    if count <= _ADDED:
        return count
    return next(n for n in range(math.isqrt(count - 1) + 1, count + 1) if count % n == 0)


def _ones(emit: Emit, *size: int) -> fx.Node:
    return emit.constant(torch.ones(size))


def _mean(emit: Emit, x: fx.Node, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> fx.Node | None:  # noqa: ANN401, FBT001, FBT002  aten's own signature
    added = total(emit, x, dims, keepdim)
    return None if added is None else emit.binary(aten.mul.Tensor, added, shape(added).numel() / shape(x).numel())


def _log_softmax(emit: Emit, x: fx.Node, dim: int, _half: bool) -> fx.Node | None:  # noqa: FBT001  likewise
    greatest = _amax(emit, x, [dim], keepdim=True)
    if greatest is None:
        return None
    shifted = emit.binary(aten.sub.Tensor, x, greatest)
    added = total(emit, emit.unary(aten.exp.default, shifted), [dim], keepdim=True)
    return None if added is None else emit.binary(aten.sub.Tensor, shifted, emit.unary(aten.log.default, added))


def _amax(emit: Emit, x: fx.Node, dims: Sequence[int] = (), keepdim: bool = False) -> fx.Node | None:  # noqa: FBT001, FBT002  likewise
    """Halves against each other, along one axis."""
    if len(dims) != 1 or not emit.floating(x):
        return None
    dim = dims[0] % len(shape(x))
    if shape(x)[dim] > _CLASSES:
        return None
    while (size := shape(x)[dim]) > 1:
        half = -(-size // 2)  # with an odd size one element meets itself
        low, high = emit.slice(x, dim, 0, half), emit.slice(x, dim, size - half, size)
        x = emit.binary(aten.maximum.default, low, high)
    return x if keepdim else emit.view(x, [n for i, n in enumerate(shape(x)) if i != dim])


def _step(emit: Emit, x: Value) -> fx.Node:
    return emit.unary(aten.hardtanh.default, emit.binary(aten.mul.Tensor, x, _STEEP), 0.0, 1.0)


def above(emit: Emit, a: Value, b: Value) -> fx.Node:
    """1 where ``a > b``, else 0."""
    return _step(emit, a if b == 0 else emit.binary(aten.sub.Tensor, a, b))


def _apart(emit: Emit, a: Value, b: Value) -> fx.Node:
    return _step(emit, emit.unary(aten.abs.default, emit.binary(aten.sub.Tensor, a, b)))


def _not(mask: Callable[[Emit, Value, Value], fx.Node]) -> Callable[[Emit, Value, Value], fx.Node]:
    return lambda emit, a, b: emit.binary(aten.sub.Tensor, 1.0, mask(emit, a, b))


_MASKS: Mapping[str, Callable[[Emit, Value, Value], fx.Node]] = {
    "gt": above,
    "lt": lambda emit, a, b: above(emit, b, a),
    "ge": _not(lambda emit, a, b: above(emit, b, a)),
    "le": _not(above),
    "ne": _apart,
    "eq": _not(_apart),
}


def _to_copy(emit: Emit, x: fx.Node, *, dtype: torch.dtype | None = None, **_: Any) -> fx.Node | None:  # noqa: ANN401  aten's own options
    """A comparison as a mask of floats; other conversions stay."""
    if dtype in {None, x.meta["val"].dtype}:
        return x
    mask = _MASKS.get(getattr(getattr(x.target, "overloadpacket", None), "__name__", ""))
    if dtype != torch.float32 or mask is None:
        return None
    a, b = (_as_float(emit, operand) for operand in x.args)
    return mask(emit, a, b)


def _as_float(emit: Emit, x: Any) -> Value:  # noqa: ANN401  an operand
    """Labels as floats: exact below 2**24."""
    if not isinstance(x, fx.Node):
        return float(x)
    return x if emit.floating(x) else emit.node(aten._to_copy.default, x, dtype=torch.float32)  # noqa: SLF001  aten's own name


def _clamp(emit: Emit, x: fx.Node, low: float | None = None, high: float | None = None) -> fx.Node:
    """As the operators that the delegate fuses with what comes before."""
    if low is not None and high is not None:
        return emit.unary(aten.hardtanh.default, x, float(low), float(high))
    if low == 0:
        return emit.unary(aten.relu.default, x)
    return emit.unary(aten.clamp.default, x, low, high)


def _pow(emit: Emit, x: fx.Node, exponent: float) -> fx.Node | None:
    match exponent:
        case 2:
            return emit.binary(aten.mul.Tensor, x, x)
        case 3:
            return emit.binary(aten.mul.Tensor, emit.binary(aten.mul.Tensor, x, x), x)
        case 0.5:
            return emit.unary(aten.sqrt.default, x)
        case -0.5:
            return emit.unary(aten.rsqrt.default, x)
        case -1:
            return _reciprocal(emit, x)
        case _:
            return None


def _reciprocal(emit: Emit, x: fx.Node) -> fx.Node:
    return emit.binary(aten.div.Tensor, 1.0, x)


def _full(emit: Emit, size: Sequence[int], value: float, **options: Any) -> fx.Node:  # noqa: ANN401  aten's own options
    return emit.filled(size, value, options.get("dtype"))


def _full_like(emit: Emit, x: fx.Node, value: float, **options: Any) -> fx.Node:  # noqa: ANN401  likewise
    return emit.filled(shape(x), value, options.get("dtype") or x.meta["val"].dtype)


def _uniform(value: float) -> Rule:
    def rule(emit: Emit, size: Any, **options: Any) -> fx.Node:  # noqa: ANN401  aten's own arguments
        if isinstance(size, fx.Node):
            return _full_like(emit, size, value, **options)
        return emit.filled(size, value, options.get("dtype") or torch.float32)

    return rule


_BINARY = (aten.div.Tensor, aten.maximum.default, aten.minimum.default, aten.mul.Tensor)
_UNARY = (
    aten.abs.default,
    aten.exp.default,
    aten.hardtanh.default,
    aten.log.default,
    aten.neg.default,
    aten.relu.default,
    aten.rsqrt.default,
    aten.sigmoid.default,
    aten.sqrt.default,
    aten.tanh.default,
)

ARITHMETIC: Mapping[Any, Rule] = {
    **{target: _binary(target) for target in _BINARY},
    **{target: _unary(target) for target in _UNARY},
    **{target: partial(_sum_of, target) for target in (aten.add.Tensor, aten.sub.Tensor)},
    aten._log_softmax.default: _log_softmax,  # noqa: SLF001  aten's own name
    aten._to_copy.default: _to_copy,  # noqa: SLF001  likewise
    aten.add.Scalar: partial(_sum_of, aten.add.Tensor),
    aten.addmm.default: _addmm,
    aten.amax.default: _amax,
    aten.clamp.default: _clamp,
    aten.div.Scalar: _binary(aten.div.Tensor),
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.mm.default: product,
    aten.mul.Scalar: _binary(aten.mul.Tensor),
    aten.ones.default: _uniform(1.0),
    aten.ones_like.default: _uniform(1.0),
    aten.pow.Tensor_Scalar: _pow,
    aten.reciprocal.default: _reciprocal,
    aten.rsub.Scalar: _reversed,
    aten.sub.Scalar: partial(_sum_of, aten.sub.Tensor),
    aten.sum.default: total,
    aten.sum.dim_IntList: total,
    aten.zeros.default: _uniform(0.0),
    aten.zeros_like.default: _uniform(0.0),
}
"""Operator to its rule."""
