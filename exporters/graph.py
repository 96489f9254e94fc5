"""From a function to a graph of operators that every runtime has."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument

from edgepfl.errors import EdgepflError, ExportError
from edgepfl.plan import Entry, Graph, Port
from exporters.blame import Calls
from exporters.decompositions import Table, complete
from exporters.entries import EntryFunction, Outputs
from exporters.layers import Layers


@dataclass(frozen=True)
class TracedGraph:
    """A function as a graph of operators.

    Attributes:
        entry: which graph it is.
        ports: its border; inputs that nothing reads are gone.
        module: takes the inputs and returns a tuple of the outputs, in the order of the ports.
        example: inputs to trace it further with.
    """

    entry: Entry
    ports: Graph
    module: fx.GraphModule
    example: tuple[Tensor, ...]


def trace(function: EntryFunction, table: Table | None = None) -> TracedGraph:
    """Trace a function with its gradients.

    Args:
        function: the function.
        table: what replaces operators while tracing, :func:`exporters.decompositions.complete` unless given.

    Raises:
        ExportError: it branches on values, draws random numbers, or cannot be traced for another reason.
    """
    outputs: Outputs = []

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        names = (port.name for port in function.inputs)
        outputs[:] = function.call(dict(zip(names, tensors, strict=True)))
        return tuple(tensor for _, tensor in outputs)

    example = tuple(_example(port) for port in function.inputs)
    calls = Calls()
    try:
        with calls.watching():
            module = _functional(flat, table or complete(), example)
    except ExportError as error:
        places = [place for place in (calls.where, error.where) if place]
        raise type(error)(error.what, where=", ".join(dict.fromkeys(places)), remedy=error.remedy) from error
    except EdgepflError:
        raise
    except Exception as error:  # torch raises whatever its operators raise
        raise _untraceable(error, calls.where or function.entry) from error
    _refuse_randomness(module.graph, function.entry)
    inputs, kept = _simplify(module.graph, function.inputs)
    module.recompile()
    ports = Graph(inputs, tuple(port for port, _ in outputs))
    return TracedGraph(function.entry, ports, module, tuple(example[i] for i in kept))


def _untraceable(error: Exception, where: str) -> ExportError:
    if "value out of a tracing tensor" in str(error):
        what = "it branches on the value of a tensor, or turns one into a number"
        remedy = "A model must not branch on the values of tensors: use torch.where, or arithmetic with a mask"
        return ExportError(what, where=where, remedy=remedy)
    if "setup_context" in str(error):
        what = "its torch.autograd.Function is of the old kind, which torch.func cannot differentiate"
        remedy = "Give the Function a setup_context, or write it in ordinary operators"
        return ExportError(what, where=where, remedy=remedy)
    return ExportError(f"it cannot be traced ({error})", where=where, remedy="Leave out of the model what fails")


def _functional(flat: Callable[..., tuple[Tensor, ...]], table: Table, example: tuple[Tensor, ...]) -> fx.GraphModule:
    """Trace until nothing is computed in place: what comes after takes equal expressions for equal values.

    The first trace takes the gradients; autograd's formulas, a model and the decompositions may compute in place there.
    The others only replace that: they see a graph, so a constant of the model is a tensor like any other to them.
    """
    # Torch describes each value in the fake mode that it finds, or else in a new one, which takes it half of the time.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        with Layers():
            module: fx.GraphModule = make_fx(flat, decomposition_table=dict(table))(*example)
        for _ in range(3):
            _lift_constants(module)
            module = make_fx(functionalize(module), decomposition_table=dict(table))(*example)
            if not any(_in_place(node) for node in module.graph.nodes):
                return module
    raise ExportError("it computes in place, and no rewriting ends that")


def _lift_constants(module: fx.GraphModule) -> None:
    """What a model holds besides its parameters must be told apart from what is written in place."""
    for node in module.graph.find_nodes(op="get_attr"):
        with module.graph.inserting_after(node):
            lifted = module.graph.call_function(torch.ops.aten.lift_fresh_copy.default, (node,))
        node.replace_all_uses_with(lifted, delete_user_cb=lambda user, lifted=lifted: user is not lifted)
    module.recompile()


def _drop_lifts(graph: fx.Graph) -> None:
    """Nothing is written in place any more, so a constant may stand for itself."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.lift_fresh_copy.default):
        node.replace_all_uses_with(node.args[0])


def _in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable  # noqa: SLF001  no public name


def _example(port: Port) -> Tensor:
    if port.spec.dtype == "int64":
        return torch.zeros(port.spec.shape, dtype=torch.int64)
    return torch.full(port.spec.shape, 0.5)


def _refuse_randomness(graph: fx.Graph, entry: Entry) -> None:
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise ExportError(
                f"it draws random numbers ({node.target})",
                where=entry,
                remedy="Draw through nn.Dropout and its kin alone, or set it to evaluation: module.eval()",
            )


def _simplify(graph: fx.Graph, ports: tuple[Port, ...]) -> tuple[tuple[Port, ...], list[int]]:
    """Drop what nothing reads and what is computed twice; give every output a node of its own."""
    _drop_lifts(graph)
    graph.eliminate_dead_code()
    _share(graph)
    graph.eliminate_dead_code()
    _free_layout(graph)
    _separate_outputs(graph)
    placeholders = graph.find_nodes(op="placeholder")
    kept = [i for i, node in enumerate(placeholders) if node.users]
    for node in placeholders:
        if not node.users:
            graph.erase_node(node)
    return tuple(ports[i] for i in kept), kept


def _share(graph: fx.Graph) -> None:
    """Common subexpressions: pooling's backward compares with the maximum that its forward pass found."""
    seen: dict[Hashable, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        key = (node.target, _frozen(node.args), _frozen(tuple(sorted(node.kwargs.items()))))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)


def _free_layout(graph: fx.Graph) -> None:
    """A view asks for its operand's layout in memory, which the runtime's exporter may choose otherwise."""
    for view in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):  # noqa: SLF001  its name
        for node in graph.find_nodes(op="call_function", target=view):
            node.target = torch.ops.aten.reshape.default


def _frozen(argument: Argument) -> Hashable:
    if isinstance(argument, tuple | list):
        return tuple(_frozen(item) for item in argument)
    return type(argument).__name__, argument if isinstance(argument, Hashable) else repr(argument)


def _separate_outputs(graph: fx.Graph) -> None:
    """An output that is an input, or another output, becomes a copy of it."""
    output = graph.output_node()
    returned: list[Argument] = []
    for node in output.args[0]:  # type: ignore[union-attr]  # the traced function returns a tuple
        if isinstance(node, fx.Node) and (node.op != "call_function" or node in returned):
            with graph.inserting_before(output):
                returned.append(graph.call_function(torch.ops.aten.clone.default, (node,)))
        else:
            returned.append(node)
    output.args = (tuple(returned),)
