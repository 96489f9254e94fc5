"""A graph written anew, operator by operator, in what the XNNPACK delegate takes.

What is written is simplified on the way: a view of a view is one view, a permutation of a permutation is one or none,
equal expressions are one node, and permutations move past elementwise operators until they meet their inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

aten = torch.ops.aten

Value: TypeAlias = fx.Node | float
"""An operand: a node, or a number that stands for a tensor without dimensions."""

Rule: TypeAlias = Callable[..., Any]
"""``(emit, *arguments of an operator)`` -> its result; None where the operator stays as it is."""

_FOLDED = 1024  # elements; a greater constant is computed on the device, not shipped


class Emit:
    """Writes a graph; every node carries a tensor of its shape on torch's ``meta`` device.

    Attributes:
        graph: what was written so far.
        root: holds its constants.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self._seen: dict[Hashable, fx.Node] = {}
        self._constants = 0

    def placeholder(self, name: str, example: Tensor) -> fx.Node:
        """An input."""
        node = self.graph.placeholder(name)
        node.meta["val"] = example.to("meta")
        return node

    def constant(self, value: Tensor) -> fx.Node:
        """A tensor that is part of the graph."""
        value = value.detach().contiguous()
        key = ("constant", value.dtype, tuple(value.shape), value.numpy().tobytes())
        if key not in self._seen:
            name = f"constant{self._constants}"
            self._constants += 1
            self.root.register_buffer(name, value)
            node = self.graph.get_attr(name)
            node.meta |= {"val": value.to("meta"), "constant": value}
            self._seen[key] = node
        return self._seen[key]

    def filled(self, size: Sequence[int], value: float, dtype: torch.dtype | None) -> fx.Node:
        """A tensor of one value: arithmetic takes the value, and only what else reads the tensor computes it."""
        node = self.node(aten.full.default, list(size), value, dtype=dtype)
        if self.floating(node):
            node.meta["fill"] = float(value)
        return node

    def __call__(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as torch's operators
        """Any operator as it is: its result, a node; or the equal node that is already there."""
        key = (target, _frozen(args), _frozen(tuple(sorted(kwargs.items()))))
        if key not in self._seen:
            self._seen[key] = self._new(target, args, kwargs)
        return self._seen[key]

    def node(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:  # noqa: ANN401  likewise
        """The same, of an operator that gives one tensor."""
        found: fx.Node = self(target, *args, **kwargs)
        return found

    def copy(self, x: fx.Node) -> fx.Node:
        """A copy, never shared."""
        return self._new(aten.clone.default, (x,), {}, fold=False)

    def view(self, x: fx.Node, size: Sequence[int]) -> fx.Node:
        """``x`` in another shape."""
        if x.target is aten.reshape.default:
            x = _source(x)
        return x if shape(x) == torch.Size(size) else self.node(aten.reshape.default, x, list(size))

    def expand(self, x: fx.Node, size: Sequence[int]) -> fx.Node:
        """``x`` repeated along its axes of size 1; arithmetic that broadcasts takes ``x`` itself."""
        return self.node(aten.expand.default, x, list(size))

    def permute(self, x: fx.Node, order: Sequence[int]) -> fx.Node:
        """``x`` with its axes in another order."""
        if x.target is aten.permute.default:
            inner = _order(x)
            x, order = _source(x), [inner[i] for i in order]
        moved = [i for i in order if shape(x)[i] != 1]
        if moved == sorted(moved):  # only axes of size 1 move: no value does
            return self.view(x, [shape(x)[i] for i in order])
        return self.node(aten.permute.default, x, list(order))

    def slice(self, x: fx.Node, dim: int, start: int, stop: int) -> fx.Node:
        """A part of ``x`` along one axis."""
        return x if stop - start == shape(x)[dim] else self.node(aten.slice.Tensor, x, dim, start, stop)

    def cat(self, parts: Sequence[fx.Node], dim: int) -> fx.Node:
        """The parts joined along an axis."""
        return parts[0] if len(parts) == 1 else self.node(aten.cat.default, list(parts), dim)

    def pad(self, x: fx.Node, dim: int, before: int, after: int, fill: float = 0.0) -> fx.Node:
        """``x`` with more around it along one axis."""
        if before == after == 0:
            return x
        amounts = [0, 0] * (len(shape(x)) - dim - 1) + [before, after]  # torch counts from the last axis
        return self.node(aten.constant_pad_nd.default, x, amounts, fill)

    def unary(self, target: Callable[..., Any], x: fx.Node, *args: Any) -> fx.Node:  # noqa: ANN401  as torch's operators
        """An elementwise operator of one tensor."""
        return self._elementwise(target, (x, *args))

    def binary(self, target: Callable[..., Any], a: Value, b: Value) -> fx.Node:
        """An elementwise operator of two operands."""
        like = next((x.meta["val"].dtype for x in (a, b) if isinstance(x, fx.Node)), torch.float32)
        left, right = (x if isinstance(x, fx.Node) else self.constant(torch.tensor(x, dtype=like)) for x in (a, b))
        whole = _together(left, right)
        left = self._slim(left, right, whole)
        right = self._slim(right, left, whole)
        return self._elementwise(target, (left, right))

    @staticmethod
    def floating(x: fx.Node) -> bool:
        """Whether it holds floats."""
        return bool(x.meta["val"].dtype.is_floating_point)

    def _slim(self, x: fx.Node, other: fx.Node, whole: torch.Size) -> fx.Node:
        """``x`` as small as broadcasting allows."""
        small: fx.Node | None = None
        if "fill" in x.meta:
            small = self.constant(torch.tensor(x.meta["fill"], dtype=x.meta["val"].dtype))
        elif x.target is aten.expand.default:
            small = _source(x)
        return small if small is not None and _together(small, other) == whole else x

    def _elementwise(self, target: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        """Permutations come after it where all operands have the same."""
        wide = [x for x in args if isinstance(x, fx.Node) and math.prod(shape(x)) > 1]
        orders = {tuple(_order(x)) if x.target is aten.permute.default else () for x in wide}
        order = orders.pop() if len(orders) == 1 else ()
        if not order:
            return self.node(target, *args)
        inner = [_source(x) if x in wide else x for x in args]
        return self.permute(self.node(target, *inner), order)

    def _new(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, fold: bool = True
    ) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        made = "device" in kwargs or not node.all_input_nodes  # of nothing: torch would make it for real
        node.meta["val"] = _evaluated(node, "val", {"device": "meta"} if made else {})
        if fold and _foldable(node):
            value = _evaluated(node, "constant", {})
            self.graph.erase_node(node)
            return self.constant(value)
        return node


def shape(node: fx.Node) -> torch.Size:
    """The shape of a node's value."""
    size: torch.Size = node.meta["val"].shape
    return size


def _together(a: fx.Node, b: fx.Node) -> torch.Size:
    """The shape that two operands broadcast to."""
    whole: torch.Size = torch.broadcast_shapes(shape(a), shape(b))  # type: ignore[no-untyped-call]  # torch left it untyped
    return whole


def _foldable(node: fx.Node) -> bool:
    """Whether it depends on constants alone, and is small enough to be one."""
    value = node.meta["val"]
    known = all("constant" in x.meta for x in node.all_input_nodes)
    return known and isinstance(value, Tensor) and value.numel() <= _FOLDED


def _evaluated(node: fx.Node, field: str, options: dict[str, Any]) -> Any:  # noqa: ANN401  what the operator gives
    """The operator on what its operands carry, laid out in order."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda x: x.meta[field])
    value = node.target(*args, **{**kwargs, **options})  # type: ignore[operator]  # a function, as its node is a call
    return tree_map(lambda x: x.contiguous() if isinstance(x, Tensor) else x, value)


def _frozen(argument: Any) -> Hashable:  # noqa: ANN401  any argument of a node
    """An argument as a key: equal arguments of different types are different."""
    if isinstance(argument, tuple | list):
        return tuple(_frozen(item) for item in argument)
    return type(argument).__name__, argument if isinstance(argument, Hashable) else repr(argument)


def _order(node: fx.Node) -> list[int]:
    order: Any = node.args[1]
    return list(order)


def _source(node: fx.Node) -> fx.Node:
    """What a view, a permutation or an expansion is of."""
    (source,) = node.all_input_nodes
    return source
