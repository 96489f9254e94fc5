"""FPFC's state of pairs, every pair stored: the plain engine.

A pair ``(i, j)`` of devices with ``i < j`` is one row, in the order (0, 1), (0, 2), ..., (1, 2), ...; the other half is
its negative: ``theta_ji = -theta_ij``, ``v_ji = -v_ij``.  All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Tensor

BLOCK = 1 << 18
"""Numbers to work on at a time, so that they stay in the processor's cache."""

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs:
    """Of ``m`` devices with ``d`` fused parameters.

    Attributes:
        omega: each device's parameters as the server last heard of them, ``(m, d)``.
        theta: each pair's shrunken difference, ``(m (m - 1) / 2, d)``.
        v: each pair's dual, likewise.
    """

    omega: Tensor
    theta: Tensor
    v: Tensor


def ends(count: int) -> tuple[Ints, Ints]:
    """``i`` and ``j`` of each row."""
    i, j = np.triu_indices(count, 1)
    return i, j


def row_of(i: Ints, j: Ints, count: int) -> Ints:
    """The rows of the pairs ``(i, j)``, where ``i < j`` in each."""
    rows: Ints = i * (2 * count - i - 1) // 2 + j - i - 1
    return rows


def joined(pairs: Pairs, places: Ints, count: int, first: Tensor) -> Pairs:
    """Room for newcomers, who start at ``omega^0`` with ``theta = v = 0``.

    Args:
        pairs: of those who were here.
        places: where each of them is among all, ascending.
        count: how many they are now.
        first: ``omega^0``, ``(d,)``.
    """
    if count == len(places):
        return pairs
    omega = first.expand(count, len(first)).clone()
    omega[places] = pairs.omega
    i, j = ends(len(places))
    rows = row_of(places[i], places[j], count)
    theta, v = (first.new_zeros((count * (count - 1) // 2, len(first))) for _ in range(2))
    theta[rows], v[rows] = pairs.theta, pairs.v
    return Pairs(omega, theta, v)


def moved(
    pairs: Pairs, active: Sequence[int], uploaded: Tensor, scad: Scad, *, both: bool, unpaired: Bools | None = None
) -> Pairs:
    """The pairs after a round, each updated at most once.

    With ``delta = omega_i - omega_j + v_ij / rho``: ``theta_ij = c(|delta|) delta``, and the dual step
    ``v_ij + rho (omega_i - omega_j - theta_ij)`` is ``rho (delta - theta_ij)``, which is 0 without rounding where
    ``c = 1``.

    Args:
        pairs: before the round.
        active: who uploaded.
        uploaded: their new parameters, ``(len(active), d)``.
        scad: the penalty.
        both: only pairs of two active devices, instead of all with an active one, are updated.
        unpaired: columns that are no parameters, ``(d,)``: their ``theta`` and ``v`` stay 0.
    """
    omega = pairs.omega.clone()
    omega[np.asarray(active)] = uploaded
    takes_part = np.zeros(len(omega), bool)
    takes_part[active] = True
    i, j = ends(len(omega))
    rows = np.flatnonzero(takes_part[i] & takes_part[j] if both else takes_part[i] | takes_part[j])
    theta, v = pairs.theta.clone(), pairs.v.clone()
    block = max(BLOCK // omega.shape[1], 1)
    for start in range(0, len(rows), block):
        some = rows[start : start + block]
        delta = omega[i[some]] - omega[j[some]] + pairs.v[some] / scad.rho
        if unpaired is not None and unpaired.any():
            delta[:, unpaired] = 0
        theta[some] = shrunken = scad.factor(delta.norm(dim=1))[:, None] * delta
        v[some] = scad.rho * (delta - shrunken)
    return Pairs(omega, theta, v)


def centre(pairs: Pairs, device: int, rho: float) -> Tensor:
    """``zeta_i = (1/m) sum_j (omega_j + theta_ij - v_ij / rho)``, where ``j = i`` adds ``omega_i``; ``(d,)``."""
    count = len(pairs.omega)
    others = np.delete(np.arange(count), device)
    rows = row_of(np.minimum(others, device), np.maximum(others, device), count)
    sign = pairs.omega.new_tensor(np.where(others > device, 1.0, -1.0))[:, None]
    shares = sign * (pairs.theta[rows] - pairs.v[rows] / rho)
    return (pairs.omega.sum(0) + shares.sum(0)) / count
