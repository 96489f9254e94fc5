"""Each device function as one graph of operators over many devices at once.

``torch.func.vmap`` maps the function, gradients and all, over a leading axis of devices; ``make_fx`` writes down the
operators that this comes to.  Without the second, Python would take three times as long as the arithmetic of a small
model: the graph is written once for each number of devices, and then only operators run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from device_agent.wiring import Key, place
from edgepfl.errors import EdgepflError, ExportError, GraphFailed
from edgepfl.plan import Entry, Graph, Plan, Port
from exporters.binding import Binding
from exporters.blame import Calls
from exporters.build import plan_of
from exporters.entries import EntryFunction, Outputs, entry_functions
from simulators.vmapped.memory import Memory

Shape: TypeAlias = tuple[Entry, int, tuple[bool, ...]]
"""What a graph was written for: the function, how many devices, and which inputs each has its own of."""

Many: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Tensors in, tensors out."""

_UNMAPPED = "Batching rule not implemented"  # of recurrent layers that predict, for one


@dataclass(frozen=True)
class Written:
    """A function over many devices as a graph.

    Attributes:
        inputs: the places of what it reads.
        outputs: the places of what it gives, each with the devices first.
        run: takes the inputs and gives the outputs.
    """

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    run: Many


class Graphs:
    """The device functions of an algorithm on a model, over many devices at once.

    Args:
        binding: the algorithm on the model.
        device: where the tensors are to be ("cpu", "cuda").

    Raises:
        ExportError: the model or the algorithm cannot be run.
        PlanError: the algorithm contradicts itself.
    """

    def __init__(self, binding: Binding, device: str = "cpu") -> None:
        self._functions = entry_functions(binding)
        self._device = torch.device(device)
        self._name = binding.model.name
        self._written: dict[Shape, Written] = {}
        self.plan = plan_for(binding, self._functions)

    def has(self, entry: Entry) -> bool:
        """Whether the algorithm has this function."""
        return entry in self._functions

    def run(self, entry: Entry, memory: Memory) -> None:
        """Run one function for all devices of ``memory``, and put there what it gives.

        Raises:
            ExportError: it cannot be run for many devices at once.
            GraphFailed: it reads what nothing has set.
        """
        function = self._functions[entry]
        own = tuple(memory.find(place(port))[1] for port in function.inputs)
        shape = (entry, memory.size, own)
        if shape not in self._written:
            self._written[shape] = self._write(function, memory, own)
        written = self._written[shape]
        tensors = [_known(entry, key, memory.find(key)[0]) for key in written.inputs]
        with torch.no_grad():
            memory.own.update(zip(written.outputs, written.run(*tensors), strict=True))

    def _write(self, function: EntryFunction, memory: Memory, own: tuple[bool, ...]) -> Written:
        found = (memory.find(place(port))[0] for port in function.inputs)
        # Copies: two places may share a tensor now and not later, and a trace tells inputs apart by their identity.
        example = [
            _zeros(port, self._device) if tensor is None else tensor.clone(memory_format=torch.contiguous_format)
            for port, tensor in zip(function.inputs, found, strict=True)
        ]
        outputs: Outputs = []

        def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
            names = (port.name for port in function.inputs)
            outputs[:] = function.call(dict(zip(names, tensors, strict=True)))
            return tuple(tensor for _, tensor in outputs)

        module = self._traced(_mapped(flat, own, memory.size), example, function.entry)
        if module is None:
            module = self._traced(_one_by_one(flat, own, memory.size), example, function.entry)
        if module is None:
            raise _refused("an operator has no rule for it", f"{self._name}, {function.entry}")
        kept = _used_inputs(module.graph)
        module.recompile()
        places = [place(port) for port in function.inputs]
        return Written(tuple(places[i] for i in kept), tuple(place(port) for port, _ in outputs), module)

    def _traced(self, function: Many, example: list[Tensor], entry: Entry) -> fx.GraphModule | None:
        """The operators that a function comes to; None where one of them cannot be mapped over devices.

        Raises:
            ExportError: it cannot be traced for another reason.
        """
        calls = Calls()
        try:
            with warnings.catch_warnings(), torch.no_grad(), calls.watching():
                # An operator without a rule for many devices is taken device by device: slower, but the same numbers.
                warnings.filterwarnings("ignore", message=".*performance drop.*", category=UserWarning)
                module: fx.GraphModule = make_fx(function)(*example)
        except EdgepflError:
            raise
        except Exception as error:  # torch raises whatever its operators raise
            if _UNMAPPED in str(error):
                return None
            raise _refused(str(error), calls.where or f"{self._name}, {entry}") from error
        module.graph.eliminate_dead_code()
        return module


def plan_for(binding: Binding, functions: dict[Entry, EntryFunction] | None = None) -> Plan:
    """The plan of an algorithm on a model, as an export would have it but for the inputs that no graph reads.

    Args:
        binding: the algorithm on the model.
        functions: those of the binding, where they were made already.

    Raises:
        ExportError: the model or the algorithm cannot be run.
        PlanError: the algorithm contradicts itself.
    """
    functions = functions or entry_functions(binding)
    return plan_of(binding, {entry: _border(function) for entry, function in functions.items()})


def _border(function: EntryFunction) -> Graph:
    values = {port.name: _zeros(port, torch.device("cpu")) for port in function.inputs}
    with torch.no_grad():
        return Graph(function.inputs, tuple(port for port, _ in function.call(values)))


def _zeros(port: Port, device: torch.device) -> Tensor:
    return torch.zeros(port.spec.shape, dtype=getattr(torch, port.spec.dtype), device=device)


def _mapped(flat: Many, own: tuple[bool, ...], size: int) -> Many:
    """A function over all devices; where they have every input in common, they have the outputs in common, too."""
    if not any(own):
        return lambda *tensors: tuple(tensor.expand(size, *tensor.shape) for tensor in flat(*tensors))
    mapped: Many = torch.func.vmap(flat, in_dims=tuple(0 if each else None for each in own))
    return mapped


def _one_by_one(flat: Many, own: tuple[bool, ...], size: int) -> Many:
    """A function over all devices, one after the other."""

    def each(*tensors: Tensor) -> tuple[Tensor, ...]:
        rows = [[x[device] if mine else x for x, mine in zip(tensors, own, strict=True)] for device in range(size)]
        return tuple(torch.stack(outputs) for outputs in zip(*(flat(*row) for row in rows), strict=True))

    return each


def _used_inputs(graph: fx.Graph) -> list[int]:
    """Drop the inputs that nothing reads; the numbers of the others."""
    placeholders = graph.find_nodes(op="placeholder")
    kept = [number for number, node in enumerate(placeholders) if node.users]
    for node in placeholders:
        if not node.users:
            graph.erase_node(node)
    return kept


def _known(entry: Entry, key: Key, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        kind, group, name = key
        raise GraphFailed(f"it reads tensor {name!r} of {kind} {group!r}, which nothing has set", where=entry)
    return tensor.contiguous()  # as it was when the graph was written: a view asks for its operand's strides


def _refused(what: str, where: str) -> ExportError:
    """Say which part of a model or algorithm stands in the way."""
    text = " ".join(what.split())
    remedy = "Run it with real agents: edgepfl compare, edgepfl emulate"
    if "randomness" in text or "random operation" in text:
        remedy = "Draw through nn.Dropout and its kin alone, which take their numbers from the run's seed"
    elif "data-dependent" in text or ".item()" in text or "value out of a tracing tensor" in text:
        remedy = "A model must not branch on the values of tensors: use torch.where, or arithmetic with a mask"
    return ExportError(f"it cannot be run for many devices at once ({text[:300]})", where=where, remedy=remedy)
