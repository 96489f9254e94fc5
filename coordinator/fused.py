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
    checkpoint = journal.checkpoint(row.id)
    if not checkpoint.whole:
        raise RunError("aggregators hold the state of this run", where=row.id, remedy="Set finalize = cluster_mean")
    plan = unpack(vault.offered.read(row.bundle), where=f"bundle of {row.id}", golden=False).plan
    algorithm = updater.algorithm_of(plan, row.config.hyper)
    return clusters_of(algorithm, vault.load(algorithm, checkpoint).state)
