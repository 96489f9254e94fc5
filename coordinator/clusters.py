"""Which devices a run of FPFC has fused, for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgepfl.algorithms import Algorithm
from edgepfl.algorithms._clusters import clusters, fused_below, histogram
from edgepfl.errors import RunError
from edgepfl.tree import Trees

WIDTH = 40  # of the longest bar


class Clusters(msgspec.Struct, frozen=True):
    """The clusters of a fleet.

    Attributes:
        nu: pairs with ``|theta|`` at most this are fused.
        groups: the devices of each cluster, the greatest cluster first.
        histogram: how many pairs have a ``|theta|`` at most each bound, and above the one before.
    """

    nu: float
    groups: tuple[tuple[str, ...], ...]
    histogram: tuple[tuple[float, int], ...]


def clusters_of(algorithm: Algorithm, state: Trees, *, nu: float = 0.0) -> Clusters:
    """The clusters in FPFC's state.

    Args:
        algorithm: with the engine that made the state.
        state: the server's, torch or NumPy.
        nu: pairs at most this far apart are fused; 0 is the algorithm's choice.

    Raises:
        RunError: the state is another algorithm's, or of another engine.
    """
    import torch  # noqa: PLC0415  the commands that only print clusters start without its seconds

    from edgepfl.algorithms.fpfc import FPFC  # noqa: PLC0415  likewise

    if not isinstance(algorithm, FPFC):
        raise RunError("the run's algorithm knows no clusters", where="clusters", remedy="Ask of a run of fpfc")
    found = algorithm.distances({slot: tree.map(torch.as_tensor) for slot, tree in state.items()})
    chosen = nu or algorithm.nu or fused_below(algorithm.xi, found.omega)
    groups = sorted(clusters(found.devices, found.theta, chosen), key=lambda group: (-len(group), group))
    return Clusters(chosen, tuple(groups), histogram(found.theta))


def describe(found: Clusters) -> str:
    """The clusters and the pairs' distances as text."""
    lines = [f"{len(found.groups)} clusters (pairs with |theta| <= {found.nu:.3g} are fused)"]
    lines += [f"  {len(group):>4}  {_listed(group)}" for group in found.groups]
    most = max((count for _, count in found.histogram), default=0)
    lines += ["|theta| up to   pairs"] if most else []
    for bound, count in found.histogram:
        bar = "#" * -(-count * WIDTH // most)
        lines.append(f"  {bound:>10.3g} {count:>8}  {bar}".rstrip())
    return "\n".join(lines)


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
