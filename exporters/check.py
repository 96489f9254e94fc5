"""No graph ships unchecked: each is run on its own runtime and compared with torch, before it is put in a bundle.

One run on one input would have passed two of the three silent wrong gradients that were found in current exporters and
runtimes.  So: several fresh inputs with and without padding rows, each run several times, the outputs poisoned before
every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepfl import seeds
from edgepfl.bundle import Golden, golden_bytes
from edgepfl.errors import ExportError, GraphMismatch
from edgepfl.plan import Entry, Graph, Kind
from edgepfl.tree import Tree
from exporters.draws import Draws, Padding

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]
"""Inputs to outputs, by port name."""

REPEATS = 3
TOLERANCE = 1e-4
"""The greatest error in an output, relative to the output's greatest element."""

FLOOR = 1e-6
"""An error that is always small enough: outputs that should be all zeros are."""

_BESIDE = 1e-9  # relative: in double precision a row that does not matter changes the last bits at most
_NUDGE = 1e-6  # relative, some ten times the rounding of float32
_NUDGES = 4
_ATTEMPTS = 12  # where the reference is not smooth


@dataclass(frozen=True)
class Checked:
    """A graph and what it must compute.

    Attributes:
        entry: which graph.
        ports: its border.
        reference: the eager function in float64; takes the inputs that the graph has.
    """

    entry: Entry
    ports: Graph
    reference: Run


def check(checked: Checked, run: Run, draws: Draws, *, where: str = "graph") -> bytes:
    """Compare a graph with its reference.

    Args:
        checked: the graph and its reference.
        run: runs the graph on its runtime, in buffers that held NaN before.
        draws: where the inputs come from.
        where: the runtime, for messages.

    Returns:
        Golden vectors: the inputs and reference outputs of one call, as a bundle holds them.

    Raises:
        GraphMismatch: the graph gave other numbers.
        ExportError: the reference is not finite, or padding rows make a difference to it.
    """
    place = f"{where} graph {checked.entry}"
    golden = b""
    for padding in Padding:
        agreed = _agreed(checked, run, draws, padding, f"{place}, {padding.value}")
        if padding is Padding.SOME:
            _same_beside_others(checked, agreed, draws)
            golden = _golden(checked, agreed, draws)
    return golden


@dataclass(frozen=True)
class _Call:
    """Inputs, and what the reference gives there."""

    feeds: dict[str, NDArray[Any]]
    expected: Arrays


def _agreed(checked: Checked, run: Run, draws: Draws, padding: Padding, where: str) -> _Call:
    """Inputs at which graph and reference agree.

    Where ReLU or pooling is about to switch, rounding alone decides the gradient, on every runtime differently.  So
    disagreement counts at once where the reference is smooth, and elsewhere only if it comes again with fresh inputs.

    In a network of many layers that normalise and switch, some switch is always near: torch in single precision is then
    off by a tenth itself.  There is no input at which every output agrees, but switches meet another output each time,
    and a wrong graph is wrong on all inputs.  So each output must have agreed once, and at one of the inputs, which
    become the golden ones, all must be off by no more than the reference moves.
    """
    always: set[str] | None = None
    explained: _Call | None = None
    for _ in range(_ATTEMPTS):
        call = _drawn(checked, draws, padding)
        errors = _errors(run, call, checked.ports, where)
        wrong = {name for name, error in errors.items() if error > _allowed(call.expected[name])}
        if not wrong:
            return call
        moved = _moved(checked, call, draws)
        always = wrong if always is None else always & wrong
        if all(far <= _allowed(call.expected[name]) for name, far in moved.items()):
            raise _mismatch(min(wrong), call, errors, where)
        if all(error <= _allowed(call.expected[name]) + moved[name] for name, error in errors.items()):
            explained = explained or call
    if explained is None:
        raise _mismatch(min(always or wrong), call, errors, where)
    if always:
        raise _undecided(_mismatch(min(always), call, errors, where))
    return explained


def _drawn(checked: Checked, draws: Draws, padding: Padding) -> _Call:
    feeds = draws.feeds(checked.ports.inputs, padding)
    expected = checked.reference(feeds)
    if not all(np.isfinite(array).all() for array in expected.values()):
        raise ExportError("the eager reference itself is not finite", where=checked.entry)
    return _Call(feeds, expected)


def _moved(checked: Checked, call: _Call, draws: Draws) -> dict[str, float]:
    """How far each output of the reference moves when its inputs do, by a little more than rounding."""
    near = [checked.reference(draws.nudged(call.feeds, _NUDGE)) for _ in range(_NUDGES)]
    return {name: max(_apart(each[name], wanted) for each in near) for name, wanted in call.expected.items()}


def _golden(checked: Checked, call: _Call, draws: Draws) -> bytes:
    """A call for a device to repeat, with the error it may make: another processor rounds otherwise."""
    moved = _moved(checked, call, draws)
    allowed = {name: np.float32(_allowed(wanted) + moved[name]) for name, wanted in call.expected.items()}
    return golden_bytes(Golden(Tree(call.feeds), Tree(call.expected).map(np.float32), Tree(allowed)))


def _same_beside_others(checked: Checked, call: _Call, draws: Draws) -> None:
    """Rows that do not count must not matter: a layer that mixes examples would learn from padding."""
    kept, other = draws.other_padding(call.feeds)
    found = checked.reference(other)
    for port in checked.ports.outputs:
        rows = slice(kept) if port.kind is Kind.OUTPUT else ...
        wanted = call.expected[port.name][rows]
        if not _apart(found[port.name][rows], wanted) <= _BESIDE * float(np.max(np.abs(wanted))):
            raise ExportError(
                f"{port.name} depends on rows that only fill a minibatch: a layer or the loss mixes the examples",
                where=f"graph {checked.entry}",
                remedy="Let each example's output follow from that example; of those that mix, batch normalisation may",
            )


def _errors(run: Run, call: _Call, ports: Graph, where: str) -> dict[str, float]:
    """The greatest error of each output in several runs."""
    errors = dict.fromkeys(call.expected, 0.0)
    for _ in range(REPEATS):
        found = run(call.feeds)
        for port in ports.outputs:
            actual, wanted = found[port.name], call.expected[port.name]
            if actual.shape != wanted.shape or actual.dtype != np.float32:
                raise GraphMismatch(f"{port.name} is {actual.dtype}{list(actual.shape)}", where=where)
            errors[port.name] = max(errors[port.name], worst := _apart(actual, wanted))
            if not np.isfinite(worst):
                raise _mismatch(port.name, call, {port.name: worst}, where)
    return errors


def _mismatch(name: str, call: _Call, errors: Mapping[str, float], where: str) -> GraphMismatch:
    return GraphMismatch(
        f"{name} is off by {errors[name]:.3g}, and its greatest element is {np.max(np.abs(call.expected[name])):.3g}",
        where=where,
        remedy="Do not use this graph; report the layer that is responsible",
    )


def _undecided(error: GraphMismatch) -> GraphMismatch:
    return GraphMismatch(
        f"{error.what}: rounding alone does as much here, so nobody can tell whether the graph is right",
        where=error.where,
        remedy="Normalise over more values (a larger --batch, larger inputs, GroupNorm), or freeze BatchNorm: .eval()",
    )


def _allowed(wanted: NDArray[Any]) -> float:
    return TOLERANCE * float(np.max(np.abs(wanted))) + FLOOR


def _apart(actual: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The greatest error."""
    return float(np.max(np.abs(actual - wanted)))


def generator(entry: Entry) -> np.random.Generator:
    """The generator of one graph's inputs: every export of a graph draws the same."""
    return seeds.generator(0, "check", entry.value)
