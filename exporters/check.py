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

from edgepfl import codec, seeds
from edgepfl.errors import ExportError, GraphMismatch
from edgepfl.plan import Entry, Graph
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

_NUDGE = 1e-6  # relative, some ten times the rounding of float32
_NUDGES = 4
_ATTEMPTS = 50


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
        ExportError: the reference is not finite, or nowhere smooth.
    """
    place = f"{where} graph {checked.entry}"
    golden = b""
    for padding in Padding:
        feeds, expected = _settled(checked, draws, padding)
        for _ in range(REPEATS):
            _compare(run(feeds), expected, checked.ports, f"{place}, {padding.value}")
        if padding is Padding.SOME:
            golden = codec.encode({"in": Tree(feeds), "out": Tree(expected).map(np.float32)})
    return golden


def _settled(checked: Checked, draws: Draws, padding: Padding) -> tuple[dict[str, NDArray[Any]], Arrays]:
    """Inputs at which the reference is smooth, and what it gives there.

    Where ReLU or pooling is about to switch, rounding alone decides the gradient, on every runtime differently.  Such
    inputs say nothing; whether they are such is asked of the reference alone.
    """
    for _ in range(_ATTEMPTS):
        feeds = draws.feeds(checked.ports.inputs, padding)
        expected = checked.reference(feeds)
        moved = [checked.reference(draws.nudged(feeds, _NUDGE)) for _ in range(_NUDGES)]
        if not all(np.isfinite(array).all() for array in expected.values()):
            raise ExportError("the eager reference itself is not finite", where=checked.entry)
        if all(_error(near[name], expected[name]) <= 1 for near in moved for name in expected):
            return feeds, expected
    raise ExportError("the reference jumps wherever it is looked at", where=checked.entry)


def _compare(found: Arrays, expected: Arrays, ports: Graph, where: str) -> None:
    for port in ports.outputs:
        actual, wanted = found[port.name], expected[port.name]
        if actual.shape != wanted.shape or actual.dtype != np.float32:
            raise GraphMismatch(f"{port.name} is {actual.dtype}{list(actual.shape)}", where=where)
        if not _error(actual, wanted) <= 1:  # NaN is no match
            worst = float(np.max(np.abs(actual - wanted)))
            raise GraphMismatch(
                f"{port.name} is off by {worst:.3g}, and its greatest element is {np.max(np.abs(wanted)):.3g}",
                where=where,
                remedy="Do not use this graph; report the layer that is responsible",
            )


def _error(actual: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The greatest error, in units of what is allowed."""
    allowed = TOLERANCE * float(np.max(np.abs(wanted))) + FLOOR
    return float(np.max(np.abs(actual - wanted))) / allowed


def generator(entry: Entry) -> np.random.Generator:
    """The generator of one graph's inputs: every export of a graph draws the same."""
    return seeds.generator(0, "check", entry.value)
