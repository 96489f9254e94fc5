"""Layers inside a training step, exported, and compared with torch's own gradients in float64."""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _breadth import FULL
from _components import absent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad

from edgepfl.plan import Entry, Kind, Port, TensorSpec
from exporters import onnx
from exporters.decompositions import Table, complete
from exporters.entries import EntryFunction, Outputs
from exporters.graph import TracedGraph, trace
from exporters.native import onnx_table
from exporters.ort import PoisonedOnnx

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Run = Callable[[Arrays], Arrays]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
Shape = tuple[int, ...]

TOLERANCE = 1e-4
DRAWS = 2
REPEATS = 3


def normal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape)


def wide(rng: np.random.Generator, shape: Shape) -> Array:
    """Far enough to reach every piece of an activation."""
    return 3 * rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.uniform(0.3, 2.0, shape)


def tied(rng: np.random.Generator, shape: Shape) -> Array:
    """Three values only: nearly every comparison has ties."""
    return rng.integers(-1, 2, shape).astype(np.float64)


def below(high: int) -> Draw:
    """Integers, many of them more than once."""
    return lambda rng, shape: rng.integers(0, high, shape)


@dataclass(frozen=True)
class Case:
    """A layer and what goes in.

    Attributes:
        name: for messages.
        layer: makes it.
        shapes: of its inputs.
        draws: of each input, its values: integers for indices.
    """

    name: str
    layer: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    draws: tuple[Draw, ...]

    def __str__(self) -> str:
        return self.name


class Call(nn.Module):
    """A function of some modules and of inputs, as a layer."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(modules)

    def forward(self, *inputs: Tensor) -> Any:  # noqa: ANN401  whatever the function gives
        return self.function(*self.inner, *inputs)


def case(name: str, layer: Callable[[], nn.Module], *shapes: Shape, draw: Draw = normal) -> Case:
    return Case(name, layer, shapes, (draw,) * len(shapes))


def call(name: str, function: Callable[..., Any], *shapes: Shape, draw: Draw = normal) -> Case:
    """A function without parameters."""
    return case(name, lambda: Call(function), *shapes, draw=draw)


class _Side(nn.Module):
    """Layers side by side, each with inputs of its own: one export for all of them."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(each.layer() for each in cases)
        self._counts = [len(each.shapes) for each in cases]

    def forward(self, *inputs: Tensor) -> list[Any]:
        left = iter(inputs)
        return [layer(*(next(left) for _ in range(n))) for layer, n in zip(self.layers, self._counts, strict=True)]


def everywhere(cases: Sequence[Case], tables: Iterable[str]) -> list[tuple[Case, str]]:
    """Every case with the first table of decompositions, every third with each of the others."""
    first, *others = tables
    return [(each, first) for each in cases] + [(each, t) for i, t in enumerate(others) for each in cases[i::3]]


def together(cases: Sequence[Case]) -> Case:
    """Several cases in one graph; none loses by it, for no two share a value."""
    shapes = tuple(shape for each in cases for shape in each.shapes)
    draws = tuple(draw for each in cases for draw in each.draws)
    return Case(" + ".join(each.name for each in cases), lambda: _Side(cases), shapes, draws)


def on(runtime: str, cases: Sequence[Case]) -> Case:
    """Several cases in one graph of a runtime.

    Torch takes three times as long to lower them for ExecuTorch as for ONNX, so unless the matrix is to be full, that
    has every second one.
    """
    return together(cases if FULL or runtime == "onnx" else cases[::2])


class Through(nn.Module):
    """Parameters added to each input of a layer: their gradients are the layer's gradient in that input."""

    def __init__(self, layer: nn.Module, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        shifts = {str(i): nn.Parameter(torch.zeros(x.shape)) for i, x in enumerate(inputs) if x.is_floating_point()}
        self.shift = nn.ParameterDict(shifts)
        self.layer = layer

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        """The layer's outputs of floating point, in order."""
        moved = [x + self.shift[str(i)] if str(i) in self.shift else x for i, x in enumerate(inputs)]
        return list(_leaves(self.layer(*moved)))


def _leaves(value: object) -> Iterable[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)


class Step:
    """The step ``x - gradient(sum(c * layer(inputs)))`` of a case, and what the layer predicts.

    Args:
        case: the layer.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        rng = np.random.default_rng(0)
        tensors = [_tensor(draw(rng, shape)) for draw, shape in zip(case.draws, case.shapes, strict=True)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.module = Through(case.layer(), tensors)
        with torch.no_grad():
            outputs = copy.deepcopy(self.module)(*tensors)
        self.params = {name: TensorSpec(tuple(p.shape)) for name, p in self.module.named_parameters()}
        self.slots = [Port(f"x/{name}", Kind.SLOT, "x", spec, name) for name, spec in self.params.items()]
        self.xs = [_batch_port(f"x{i}", x) for i, x in enumerate(tensors)]
        self.cs = [_batch_port(f"c{i}", out) for i, out in enumerate(outputs)]

    def traced(self, table: Table) -> TracedGraph:
        return trace(EntryFunction(Entry.STEP, (*self.slots, *self.xs, *self.cs), self._call), table)

    def _call(self, values: Mapping[str, Tensor]) -> Outputs:
        inputs = tuple(values[port.name] for port in self.xs)

        def loss(params: dict[str, Tensor]) -> Tensor:
            found = functional_call(self.module, params, inputs)
            terms = [(out * values[port.name]).sum() for out, port in zip(found, self.cs, strict=True)]
            total: Tensor = functools.reduce(torch.add, terms)
            return total

        before = {port.tensor: values[port.name] for port in self.slots}
        with torch.no_grad():  # prediction takes other paths through torch than training
            found = functional_call(self.module, before, inputs)
        gradient = grad(loss)(before)
        predicted = [(_output_port(i, out), out) for i, out in enumerate(found)]
        return [*predicted, *((_next_port(n, spec), before[n] - gradient[n]) for n, spec in self.params.items())]

    def feeds(self, ports: Sequence[Port], rng: np.random.Generator) -> dict[str, Array]:
        """Fresh inputs; parameters near the first ones."""
        params = dict(self.module.named_parameters())
        found: dict[str, Array] = {}
        for port in ports:
            if port.kind is Kind.SLOT:
                noise = 0.0 if port.tensor.startswith("shift.") else 0.1  # a shifted tie would be none
                drawn = params[port.tensor].detach().numpy() + noise * rng.standard_normal(port.spec.shape)
            elif port.group.startswith("x"):
                drawn = self.case.draws[int(port.group[1:])](rng, port.spec.shape)
            else:
                drawn = rng.standard_normal(port.spec.shape)
            found[port.name] = drawn if drawn.dtype == np.int64 else np.asarray(drawn, np.float32)
        return found

    def reference(self, feeds: Arrays) -> dict[str, Array]:
        """Outputs and next parameters by autograd on the module as it stands, in float64."""
        module = copy.deepcopy(self.module).double()
        for name, parameter in module.named_parameters():
            if f"x/{name}" in feeds:  # what the graph does not read does not matter
                parameter.data = torch.from_numpy(feeds[f"x/{name}"].astype(np.float64))
        inputs = [torch.from_numpy(np.array(feeds[port.name])) for port in self.xs]
        outputs = module(*(x.double() if x.is_floating_point() else x for x in inputs))
        terms = [
            (out * torch.from_numpy(feeds[c.name].astype(np.float64))).sum()
            for out, c in zip(outputs, self.cs, strict=True)
        ]
        functools.reduce(torch.add, terms).backward()
        found = {f"output:{i}": out for i, out in enumerate(outputs)}
        found |= {f"next:x/{n}": p if p.grad is None else p - p.grad for n, p in module.named_parameters()}
        return {name: tensor.detach().numpy() for name, tensor in found.items()}


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array) if array.dtype == np.int64 else torch.from_numpy(array).float()


def _batch_port(name: str, like: Tensor) -> Port:
    dtype = "float32" if like.is_floating_point() else "int64"
    return Port(f"batch:{name}", Kind.BATCH, name, TensorSpec(tuple(like.shape), dtype))


def _next_port(name: str, spec: TensorSpec) -> Port:
    return Port(f"next:x/{name}", Kind.SLOT, "x", spec, name)


def _output_port(i: int, out: Tensor) -> Port:
    return Port(f"output:{i}", Kind.OUTPUT, f"output{i}", TensorSpec(tuple(out.shape)))


def by_torch(traced: TracedGraph) -> Run:
    """The graph's operators carried out by torch in float32."""

    def run(feeds: Arrays) -> Arrays:
        found = traced.module(*(torch.from_numpy(np.array(feeds[port.name])) for port in traced.ports.inputs))
        return {port.name: tensor.numpy() for port, tensor in zip(traced.ports.outputs, found, strict=True)}

    return run


def _by_onnx(step: Step) -> tuple[TracedGraph, Run]:
    traced = step.traced(onnx_table())
    return traced, PoisonedOnnx(onnx.export(traced), traced.ports).run


def _by_executorch(step: Step) -> tuple[TracedGraph, Run]:
    if importlib.util.find_spec("executorch") is None:
        absent("executorch", "pip install executorch")
    from exporters import executorch, executorch_runner, xnnpack_layers  # noqa: PLC0415  the runtime is optional, and slow to import

    traced = step.traced(xnnpack_layers.table())
    return traced, executorch_runner.PoisonedExecutorch(executorch.export(traced), traced.ports).run


_RUNTIMES = {"onnx": _by_onnx, "executorch": _by_executorch}
RUNTIMES = tuple(_RUNTIMES)


def decomposed(case: Case, table: Table | None = None) -> int:
    """Compare a traced graph, run by torch, on one input; how many values were compared."""
    step = Step(case)
    traced = step.traced(table or complete())
    feeds = step.feeds((*step.slots, *step.xs, *step.cs), np.random.default_rng(7))
    return compare(by_torch(traced)(feeds), step.reference(feeds), case.name)


def exported(case: Case, runtime: str) -> int:
    """Compare an exported graph on its runtime, on fresh inputs, several times each; how many values were compared."""
    step = Step(case)
    traced, run = _RUNTIMES[runtime](step)
    rng, count = np.random.default_rng(7), 0
    for _ in range(DRAWS):
        feeds = step.feeds((*step.slots, *step.xs, *step.cs), rng)
        wanted = step.reference(feeds)
        read = {port.name: feeds[port.name] for port in traced.ports.inputs}
        for _ in range(REPEATS):
            count += compare(run(read), wanted, f"{case.name} on {runtime}")
    return count


def compare(found: Arrays, wanted: Arrays, where: str) -> int:
    """Every output within the tolerance of its greatest element; how many values there are."""
    assert found.keys() == wanted.keys()
    for name, expected in wanted.items():
        allowed = TOLERANCE * float(np.max(np.abs(expected), initial=0.0)) + 1e-6
        worst = float(np.max(np.abs(found[name] - expected), initial=0.0))
        assert worst <= allowed, f"{where}: {name} is off by {worst:.3g}, greatest {np.max(np.abs(expected)):.3g}"
    return sum(array.size for array in wanted.values())
