"""Graphs whose inputs and outputs have an order and no names: a plan's ports are in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from device_agent.runners import Array
from edgepfl.errors import BundleError, GraphFailed
from edgepfl.plan import Entry, Port

RUNTIME = "executorch"
"""The runtime's name in bundles and in Hello."""

Kind = tuple[str, tuple[int, ...]]
"""A tensor's dtype and shape."""


def check_border(where: str, found: Sequence[Kind], ports: tuple[Port, ...]) -> None:
    """Refuse a graph with another border than the plan's.

    Raises:
        BundleError: what differs first.
    """
    remedy = "Export the bundle again"
    if len(found) != len(ports):
        raise BundleError(f"{len(found)} in the graph and {len(ports)} in the plan", where=where, remedy=remedy)
    for actual, port in zip(found, ports, strict=True):
        planned = (port.spec.dtype, port.spec.shape)
        if actual != planned:
            what = f"port {port.name!r} is {_show(actual)} in the graph and {_show(planned)} in the plan"
            raise BundleError(what, where=where, remedy=remedy)


def ordered(entry: Entry, ports: tuple[Port, ...], feeds: Mapping[str, Array]) -> list[Array]:
    """The feeds in the ports' order, each in one piece.

    Raises:
        GraphFailed: one is missing, too many, or of another shape or dtype.
    """
    arrays = []
    for port in ports:
        array = np.asarray(feeds.get(port.name))
        if array.shape != port.spec.shape or array.dtype != port.spec.dtype:
            break
        arrays.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    if len(arrays) != len(ports) or len(feeds) != len(ports):
        given = ", ".join(f"{name}: {_show(_kind(array))}" for name, array in feeds.items())
        wanted = ", ".join(f"{port.name}: {_show((port.spec.dtype, port.spec.shape))}" for port in ports)
        raise GraphFailed(f"ExecuTorch could not run it, given {given}, instead of {wanted}", where=f"graph {entry}")
    return arrays


def _kind(array: Array) -> Kind:
    return str(np.asarray(array).dtype), np.shape(array)


def _show(kind: Kind) -> str:
    return f"{kind[0]}{list(kind[1])}"
