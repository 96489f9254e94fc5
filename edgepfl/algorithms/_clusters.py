"""Which devices FPFC has fused: connected components of the pairs whose ``theta`` is near 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating]

BINS_A_DECADE = 2


def fused_below(xi: float, omega_norms: Floats) -> float:
    """The usual ``nu``: pairs with ``|theta| <= nu`` count as fused.

    Args:
        xi: the penalty's smoothing.
        omega_norms: ``|omega_i|`` of each device.
    """
    return max(xi, 1e-3 * float(np.median(omega_norms))) if len(omega_norms) else xi


def components(count: int, edges: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The connected components of a graph, by union-find, in the order of their least members.

    Args:
        count: vertices, ``0 .. count - 1``.
        edges: which are joined; the relation need not be transitive.

    >>> components(5, [(3, 1), (3, 4)])
    ((0,), (1, 3, 4), (2,))
    """
    parent = list(range(count))

    def root(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]  # halves the path for the next time
            vertex = parent[vertex]
        return vertex

    for one, other in edges:
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    members: dict[int, list[int]] = {}
    for vertex in range(count):
        members.setdefault(root(vertex), []).append(vertex)
    return tuple(tuple(found) for found in members.values())


def clusters(devices: Sequence[str], theta_norms: Floats, nu: float) -> tuple[tuple[str, ...], ...]:
    """The clusters by the names of their devices.

    Args:
        devices: in the order of their names.
        theta_norms: ``|theta_ij|`` of each pair ``i < j``, in the order (0, 1), (0, 2), ..., (1, 2), ...
        nu: pairs at most this far apart are fused.
    """
    i, j = np.triu_indices(len(devices), 1)
    fused = np.flatnonzero(theta_norms <= nu)
    edges = zip(i[fused].tolist(), j[fused].tolist(), strict=True)
    return tuple(tuple(devices[each] for each in found) for found in components(len(devices), edges))


def histogram(norms: Floats) -> tuple[tuple[float, int], ...]:
    """How many norms are at most so large: upper bounds half a decade apart, after one of 0 where norms are 0.

    >>> histogram(np.array([0.0, 0.2, 0.25, 5.0]))
    ((0.0, 1), (0.316, 2), (1.0, 0), (3.16, 0), (10.0, 1))
    """
    zeros = int((norms == 0).sum())
    exact = ((0.0, zeros),) if zeros else ()
    positive = np.asarray(norms[norms > 0], np.float64)
    if not len(positive):
        return exact
    steps = np.ceil(np.log10(positive) * BINS_A_DECADE).astype(int)
    counts = np.bincount(steps - steps.min())
    bounds = [float(f"{10 ** (step / BINS_A_DECADE):.3g}") for step in range(steps.min(), steps.max() + 1)]
    return exact + tuple(zip(bounds, counts.tolist(), strict=True))
