"""Updates of a parameter folded into the matrix product that gives its gradient.

``w - lr * (a @ b)`` is three passes over memory of the parameter's size, and for a small minibatch those cost more than
the arithmetic.  ``Gemm`` computes ``w - (lr * a) @ b`` in one, where the factor is as small as the minibatch.

What an algorithm adds to the gradient stays outside the product::

    w - lr * (a @ b + lam * (w - c))  =  (w - lr * (lam * (w - c))) - (lr * a) @ b
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, Target

aten = torch.ops.aten

_ADD, _SUB, _MUL = aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor
_SWAPPED = [1, 0]


@dataclass(frozen=True)
class _Product:
    """``coefficient * (left @ right) + rest``; None stands for one and for zero."""

    left: fx.Node
    right: fx.Node
    coefficient: fx.Node | None = None
    rest: fx.Node | None = None


def fuse_updates(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph in which each sum with a scaled matrix product is one ``addmm``.

    Args:
        module: as :func:`exporters.graph.trace` gives it, each node with its value's shape; left as it is.
    """
    fused = copy.deepcopy(module)
    for node in fused.graph.nodes:
        if node.target in {_ADD, _SUB} and not node.kwargs:
            with fused.graph.inserting_before(node):
                _Fusion(fused.graph).fuse(node)
    fused.graph.eliminate_dead_code()
    fused.recompile()
    return fused


class _Fusion:
    """Rewrites one node; what it makes on the way and does not use is dead code."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def fuse(self, node: fx.Node) -> None:
        """``start + term`` or ``start - term`` becomes an ``addmm`` where the term holds a scaled product."""
        start, term = node.args
        product = self._apart(term)
        if product is None or product.coefficient is None or not isinstance(start, fx.Node):
            return
        if _shape(start) != _shape(node):  # Gemm could broadcast it; no update needs that
            return
        if product.rest is not None:
            start = self._call(node.target, start, product.rest)
        left, right = self._scaled(product)
        fused = self._call(aten.addmm.default, start, left, right, **({"alpha": -1} if node.target is _SUB else {}))
        node.replace_all_uses_with(fused)

    def _apart(self, node: Argument) -> _Product | None:
        """A term as product, coefficient and rest; None where it holds no product that is its alone."""
        if not isinstance(node, fx.Node) or len(node.users) != 1 or node.kwargs:
            return None
        match node.target:
            case aten.mm.default:
                left, right = node.args
                return _Product(_node(left), _node(right))
            case aten.permute.default if node.args[1] == _SWAPPED:
                return self._swapped(self._apart(node.args[0]))
            case aten.mul.Tensor:
                return self._multiplied(*node.args)
            case aten.add.Tensor:
                return self._added(*node.args) or self._added(*reversed(node.args))
        return None

    def _swapped(self, product: _Product | None) -> _Product | None:
        if product is None:
            return None
        rest = product.rest and self._transposed(product.rest)
        left, right = self._transposed(product.right), self._transposed(product.left)
        return replace(product, left=left, right=right, rest=rest)

    def _multiplied(self, *factors: Argument) -> _Product | None:
        for scalar, other in (factors, reversed(factors)):
            if isinstance(scalar, fx.Node) and not _shape(scalar) and (product := self._apart(other)) is not None:
                coefficient = product.coefficient and self._call(_MUL, product.coefficient, scalar)
                rest = product.rest and self._call(_MUL, product.rest, scalar)
                return replace(product, coefficient=coefficient or scalar, rest=rest)
        return None

    def _added(self, term: Argument, other: Argument) -> _Product | None:
        product = self._apart(term)
        if product is None or not isinstance(other, fx.Node) or _shape(other) != _shape(_node(term)):
            return None
        return replace(product, rest=other if product.rest is None else self._call(_ADD, product.rest, other))

    def _scaled(self, product: _Product) -> tuple[fx.Node, fx.Node]:
        """The factors, the smaller one times the coefficient."""
        left, right = product.left, product.right
        if _shape(left).numel() <= _shape(right).numel():
            return self._times(left, product.coefficient), right
        return left, self._times(right, product.coefficient)

    def _times(self, factor: fx.Node, coefficient: fx.Node | None) -> fx.Node:
        if _is_swap(factor):  # below the transposition, so that Gemm can still take that as its own
            return self._transposed(self._times(_node(factor.args[0]), coefficient))
        return self._call(_MUL, factor, coefficient)

    def _transposed(self, node: fx.Node) -> fx.Node:
        return _node(node.args[0]) if _is_swap(node) else self._call(aten.permute.default, node, _SWAPPED)

    def _call(self, target: Target, *args: Argument, **options: Argument) -> fx.Node:
        made = self._graph.call_function(target, args, options)  # type: ignore[arg-type]  # an operator is callable
        values = [_value(arg) if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta["val"] = target(*values, **options)  # type: ignore[operator]  # likewise
        return made


def _is_swap(node: fx.Node) -> bool:
    return node.target is aten.permute.default and node.args[1] == _SWAPPED


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


def _value(node: fx.Node) -> Tensor:
    """A tensor without data, to find shapes with."""
    return torch.empty(_shape(node), dtype=node.meta["val"].dtype, device="meta")


def _node(argument: Argument) -> fx.Node:
    assert isinstance(argument, fx.Node)  # noqa: S101  the operator takes tensors there
    return argument
