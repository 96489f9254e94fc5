"""The same job with real agents over MQTT, and as vectorised mathematics: each in a process of its own, as the peers.

Run as ``python -m simulators.bench.peers_ours agents|vmapped FOLDER``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from coordinator.checkpoint import state_in
from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.status import RunStatus
from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.bus.blobs import BlobStore
from edgepfl.tree import Tree
from exporters import zoo
from exporters.build import build
from exporters.model import Model
from simulators.bench.peer_programs import common
from simulators.bench.peer_programs.common import Job
from simulators.experiment import save
from simulators.federation import Setting
from simulators.stage import Stage
from simulators.vmapped import Vectorised

_PACKAGES = ("edgepfl", "torch", "onnxruntime")


def model_of(job: Job) -> Model:
    """The job's model, with its initial parameters."""
    return zoo.mlp(inputs=job.inputs, hidden=job.hidden, classes=job.classes, batch=job.batch, seed=job.seed)


def devices_in(folder: Path) -> dict[str, Examples]:
    """Each device's examples; nothing to test on."""
    x, y = (tensor.numpy() for tensor in common.data_in(folder))
    return {f"device-{number:05}": Examples(x[number], y[number], x[0][:0], y[0][:0]) for number in range(len(x))}


def vmapped(folder: Path) -> None:
    """All rounds, whole cohorts at once."""
    job = common.job_in(folder)
    setting = Setting(steps=job.steps, seed=job.seed)
    run = Vectorised(
        algorithms.build("fedavg", {"lr": job.lr}), model_of(job), devices_in(folder), setting, threads=job.workers
    )
    stamps = []
    for _ in range(job.rounds):
        run.round(run.names)
        stamps.append(common.now())
    common.finish(folder, "vmapped", stamps, dict(run.state["w"]), _PACKAGES)


def agents(folder: Path) -> None:
    """All rounds, with a broker, a coordinator and one real agent a device."""
    job = common.job_in(folder)
    place = folder / "stage"
    place.mkdir()
    bundle = save(build(algorithms.build("fedavg", {"lr": job.lr}), model_of(job)), place)
    config = RunConfig(
        name="peers",
        rounds=job.rounds,
        steps=job.steps,
        goal=job.devices,
        minimum=job.devices,
        evaluate_every=0,
        seed=job.seed,
        canary=0.0,
    )
    stamps: dict[int, float] = {}

    def see(status: RunStatus) -> None:
        for number in range(1, status.round + 1):
            stamps.setdefault(number, common.now())

    with Stage(devices_in(folder), place, threads=job.workers) as stage:
        run = asyncio.run(_train(stage, bundle, config, see))
    ended = [stamps[number] for number in range(1, job.rounds + 1)]
    common.finish(folder, "agents", ended, dict(_final(place / "coordinator", run)), (*_PACKAGES, "paho-mqtt"))


async def _train(stage: Stage, bundle: Path, config: RunConfig, see: Callable[[RunStatus], None]) -> str:
    async with stage.fleet() as fleet:
        return (await stage.train(fleet, bundle, config, see)).status.run


def _final(state: Path, run: str) -> Tree:
    """The model in the coordinator's last checkpoint."""
    journal = Journal(state / "journal.db")
    try:
        return state_in(BlobStore(state / "private"), journal.checkpoint(run))["w"]
    finally:
        journal.close()


PROGRAMS: Mapping[str, Callable[[Path], None]] = MappingProxyType({"agents": agents, "vmapped": vmapped})
"""By name."""

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
