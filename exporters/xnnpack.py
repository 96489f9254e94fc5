"""A traced graph rewritten so that ExecuTorch's XNNPACK delegate takes all of it, or as much as there is.

Whatever stays outside cuts the delegate in two and runs on portable kernels, whose products are some twenty times
slower.  The delegate takes no product of two computed matrices but ``bmm``, no sum, no comparison, no logarithm of a
softmax and no slice with a step; the rules write all of these in what it does take.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from exporters.xnnpack_arithmetic import ARITHMETIC
from exporters.xnnpack_emit import Emit, Rule
from exporters.xnnpack_shapes import SHAPES

RULES: Mapping[Any, Rule] = {**ARITHMETIC, **SHAPES}
"""Operator to what writes it anew; an operator that is not here stays as it is."""


def rewritten(module: fx.GraphModule, example: Sequence[Tensor]) -> fx.GraphModule:
    """The same function in operators that XNNPACK takes.

    Args:
        module: a traced graph of core operators; left as it is.
        example: its inputs.
    """
    emit = Emit()
    env: dict[fx.Node, Any] = {}
    inputs = iter(example)
    for node in module.graph.nodes:
        env[node] = _written(emit, module, node, env, inputs)
    graph = fx.GraphModule(emit.root, emit.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _written(
    emit: Emit, module: fx.GraphModule, node: fx.Node, env: Mapping[fx.Node, Any], inputs: Iterator[Tensor]
) -> Any:  # noqa: ANN401  a node or several
    if node.op == "placeholder":
        return emit.placeholder(node.name, next(inputs))
    if node.op == "get_attr":
        return emit.constant(operator.attrgetter(str(node.target))(module))
    args: Any = fx.node.map_arg(node.args, env.__getitem__)
    kwargs: Any = fx.node.map_arg(node.kwargs, env.__getitem__)
    if node.op == "output":
        return emit.graph.output(tuple(_own(emit, args[0])))
    if node.target is operator.getitem and not isinstance(args[0], fx.Node):
        return args[0][args[1]]  # a rule gave several nodes
    target: Any = node.target
    rule = RULES.get(target)
    found = None if rule is None else rule(emit, *args, **kwargs)
    return emit(target, *args, **kwargs) if found is None else found


def _own(emit: Emit, outputs: Sequence[fx.Node]) -> Iterator[fx.Node]:
    """Every output a node of its own: none is an input, a constant or another output.

    Of a copy of what it computes XNNPACK would make one output for both, so another output is multiplied by 1.
    """
    returned: set[fx.Node] = set()
    for node in outputs:
        own = node if node.op == "call_function" else emit.copy(node)
        while own in returned:
            own = emit(torch.ops.aten.mul.Tensor, own, emit.constant(torch.tensor(1.0)))
        returned.add(own)
        yield own
