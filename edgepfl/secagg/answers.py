"""Which secrets a sum needs, and what the devices have revealed of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from edgepfl.secagg.messages import Revealed

Graph: TypeAlias = Mapping[str, Sequence[str]]
"""The neighbours of each device, in the order of their names: the order of the points of its shares."""


def wanted(graph: Graph, dealt: Sequence[str], survivors: Sequence[str]) -> tuple[str, ...]:
    """Whose secrets must be opened: the survivors', and those of dropouts that share a mask with one of them.

    Args:
        graph: see :data:`Graph`.
        dealt: who exchanged shares.
        survivors: whose uploads are in the sum.
    """
    alive = set(survivors)
    return tuple(device for device in dealt if device in alive or not alive.isdisjoint(graph[device]))


def shares_of(graph: Graph, device: str, revealed: Mapping[str, Revealed]) -> dict[int, bytes]:
    """The shares of a device's secret that its neighbours revealed, by their points.

    Args:
        graph: see :data:`Graph`.
        device: whose secret it is.
        revealed: by device, what it revealed.
    """
    found = {}
    for point, peer in enumerate(graph[device], start=1):
        for opens in revealed[peer].shares if peer in revealed else ():
            if opens.device == device:
                found[point] = opens.share
    return found
