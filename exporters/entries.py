"""Each graph of a bundle as one function from port to tensor, the same for tracing and for running eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgepfl.algorithms import Algorithm, has
from edgepfl.errors import PlanError
from edgepfl.plan import Entry, Kind, Port, TensorSpec
from edgepfl.tree import Tree
from exporters.binding import Binding
from exporters.minibatch import Pass

Values = Mapping[str, Tensor]
"""Port name to tensor."""

Outputs = list[tuple[Port, Tensor]]

PERSONAL = "personal"
"""The device's own model, first of what ``models`` gives."""

OUTPUT = "output"
"""The port of what ``predict`` gives."""


@dataclass(frozen=True)
class EntryFunction:
    """A graph before it is one.

    Attributes:
        entry: which graph.
        inputs: all that the function may read; the graph keeps those that it does read.
        call: the function.
    """

    entry: Entry
    inputs: tuple[Port, ...]
    call: Callable[[Values], Outputs]


def entry_functions(binding: Binding) -> dict[Entry, EntryFunction]:
    """The functions of all graphs that this algorithm has, in the order of :class:`Entry`.

    Raises:
        PlanError: it is to take inner steps and has none.
    """
    steps = binding.algorithm.inner_steps
    if steps < 0 or (steps > 0 and not has(type(binding.algorithm), Entry.INNER)):
        raise PlanError(
            f"inner_steps is {steps}, and it has no inner step",
            where=type(binding.algorithm).__name__,
            remedy="Leave inner_steps at 0",
        )
    return {entry: _MAKERS[entry](binding, entry) for entry in Entry if _wanted(binding.algorithm, entry)}


def _wanted(algorithm: Algorithm, entry: Entry) -> bool:
    return has(type(algorithm), entry) and (entry is not Entry.INNER or algorithm.inner_steps > 0)


def _round(binding: Binding, entry: Entry) -> EntryFunction:
    """``begin`` and ``finish``: slots in, slots out."""

    def call(values: Values) -> Outputs:
        function = getattr(binding.tuned(values), entry.value)
        return list(binding.slot_outputs(entry, function(binding.trees(entry, values))))

    return EntryFunction(entry, (*binding.slot_ports(entry), *binding.hyper_ports), call)


def _minibatch(binding: Binding, entry: Entry) -> EntryFunction:
    """``prepare``, ``inner``, ``step`` and ``tune``: a minibatch and slots in, slots out, and a loss if one was."""

    def call(values: Values) -> Outputs:
        batch = binding.minibatch(values)
        function = getattr(binding.tuned(values), entry.value)
        outputs = list(binding.slot_outputs(entry, function(binding.trees(entry, values), batch)))
        if batch.loss is None or entry is Entry.TUNE:
            return outputs
        return [*outputs, (_metric("loss"), batch.loss)]

    inputs = (*binding.slot_ports(entry), *binding.hyper_ports, *binding.batch_ports)
    return EntryFunction(entry, inputs, call)


def _models(binding: Binding, entry: Entry) -> EntryFunction:
    """``predictor`` and ``others``: slots in, the parameters of each model out."""

    def call(values: Values) -> Outputs:
        algorithm, trees = binding.tuned(values), binding.trees(entry, values)
        models = {PERSONAL: algorithm.predictor(trees), **algorithm.others(trees)}
        return [output for name, params in models.items() for output in binding.model_outputs(name, params)]

    return EntryFunction(entry, (*binding.slot_ports(entry), *binding.hyper_ports), call)


def _evaluate(binding: Binding, entry: Entry) -> EntryFunction:
    """Parameters and a labelled minibatch in; weighted sums over the batch out."""
    model = binding.model

    def call(values: Values) -> Outputs:
        y, weight = values["batch:y"], values["batch:weight"]
        outputs = _predicted(binding, values)
        judged = {name: judge(outputs, y) for name, judge in {"loss": model.loss, **model.metrics}.items()}
        sums = {name: (weight * numbers).sum() for name, numbers in judged.items()} | {"weight": weight.sum()}
        return [(_metric(name), total) for name, total in sums.items()]

    return EntryFunction(entry, (*binding.model_ports, *binding.batch_ports), call)


def _predict(binding: Binding, entry: Entry) -> EntryFunction:
    """Parameters and inputs in, the model's outputs out."""

    def call(values: Values) -> Outputs:
        outputs = _predicted(binding, values)
        return [(Port(OUTPUT, Kind.OUTPUT, OUTPUT, TensorSpec(tuple(outputs.shape))), outputs)]

    return EntryFunction(entry, (*binding.model_ports, *binding.x_ports), call)


def _predicted(binding: Binding, values: Values) -> Tensor:
    params = Tree({port.tensor: values[port.name] for port in binding.model_ports})
    outputs: Tensor = binding.algorithm.predict(Pass(binding.model, binding.inputs(values)), params)
    return outputs


def _metric(name: str) -> Port:
    return Port(f"metric:{name}", Kind.METRIC, name, TensorSpec(()))


_MAKERS: Mapping[Entry, Callable[[Binding, Entry], EntryFunction]] = {
    Entry.BEGIN: _round,
    Entry.PREPARE: _minibatch,
    Entry.INNER: _minibatch,
    Entry.STEP: _minibatch,
    Entry.FINISH: _round,
    Entry.TUNE: _minibatch,
    Entry.MODELS: _models,
    Entry.EVALUATE: _evaluate,
    Entry.PREDICT: _predict,
}
