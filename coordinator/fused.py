"""The clusters of a stored run."""

from __future__ import annotations

from coordinator import updater
from coordinator.checkpoint import Vault
from coordinator.clusters import Clusters, clusters_of
from coordinator.journal import Journal
from edgepfl.bundle import unpack
from edgepfl.errors import RunError


def clusters_in(journal: Journal, vault: Vault, run: str = "") -> Clusters:
    """The clusters in the last committed state of a run; of the newest if none is named.

    Raises:
        RunError: there is no such run, or its algorithm knows no clusters.
        StoreError: the state cannot be read.
    """
    row = journal.run(run)
    if row is None:
        raise RunError("there is no such run", where=run or "clusters", remedy="Start one with: edgepfl run start")
    plan = unpack(vault.offered.read(row.bundle), where=f"bundle of {row.id}", golden=False).plan
    algorithm = updater.algorithm_of(plan, row.config.hyper)
    xi, nu = (getattr(algorithm, name, 0.0) for name in ("xi", "nu"))
    return clusters_of(vault.load(algorithm, journal.checkpoint(row.id)).state, xi=xi, nu=nu)
