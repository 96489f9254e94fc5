"""One setting of ``edgepfl bench fleet``, in a process of its own: its memory and its processor time are the fleet's.

Run as ``python -m simulators.bench.fleet_work JOB``, a :class:`~simulators.bench.fleet.FleetJob` in JSON; it writes a
:class:`~simulators.bench.fleet.FleetFound`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import psutil

from coordinator.config import RunConfig
from coordinator.journal import Status
from device_agent.data import Examples
from device_agent.events import Effect, Event, Received
from device_agent.footprint import pss
from edgepfl.bundle import Bundle, unpack
from edgepfl.bus import Disconnected
from edgepfl.errors import RunError
from edgepfl.wire import Commit
from simulators.bench.exported import onnx
from simulators.bench.fleet import FleetFound, FleetJob
from simulators.bench.job import Job
from simulators.broker import BrokerHandle, open_broker
from simulators.coordination import Coordination
from simulators.fleet import AgentFleet
from simulators.open_files import enough_files

FLEET = "bench"
MEMORY = Path("/dev/shm")  # noqa: S108  state in memory: what is measured is ours, not a disk's
_EXAMPLES = 2  # minibatches that a device has
_LOOK = 0.02  # seconds between two looks at where the fleet is
_PATIENCE = 600.0  # seconds without a committed round, after which it is given up
_SEED = 7


def measured(job: FleetJob) -> FleetFound:
    """Measure a setting in a process of its own.

    Raises:
        RunError: it failed; the error holds the end of what it said.
    """
    done = subprocess.run(  # noqa: S603  our own module
        [sys.executable, "-m", "simulators.bench.fleet_work", msgspec.json.encode(job).decode()],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        tail = " | ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        raise RunError(f"the fleet's process failed: {tail}", where=f"{job.agents} agents, {job.algorithm}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=FleetFound)


def examples(bundle: Bundle, batch: int, number: int) -> Examples:
    """A device's data, made up from its number: inputs as the plan has them, and labels below 7.

    Every model has at least 7 classes.
    """
    drawn = np.random.default_rng((_SEED, number))
    (spec,) = bundle.plan.batch.x
    x = drawn.standard_normal((_EXAMPLES * batch, *spec.shape), dtype=np.float32)
    return Examples(x, drawn.integers(0, 7, len(x)), x[:0], np.zeros(0, np.int64))


class _Stage:
    """Broker, coordinator and what asks it, for one run."""

    def __init__(self, job: FleetJob, broker: BrokerHandle) -> None:
        self.job = job
        self.broker = broker
        self.round = 0
        self.folder = Path(job.folder)
        self.coordination = Coordination(broker.url, FLEET, self.folder)

    async def start(self) -> str:
        """Begin the run, as soon as the coordinator answers; its id."""
        job = self.job
        config = RunConfig(
            name="bench",
            rounds=job.rounds + 1,
            steps=job.steps,
            goal=job.selected,
            minimum=job.selected,
            gather=_PATIENCE,
            lease=_PATIENCE,
            canary=0.0,
            evaluate_every=0,
            seed=_SEED,
        )
        return await self.coordination.start(Path(job.bundle), config)

    def hear(self, _device: str, event: Event | Disconnected, _effects: tuple[Effect, ...]) -> None:
        """Note the last round that is over, as the devices hear of it."""
        if isinstance(event, Received) and isinstance(event.message, Commit):
            self.round = max(self.round, event.message.round)

    def cpu(self) -> dict[str, float]:
        """Seconds of processor time that each process has used."""
        coordinator = self.coordination.process
        numbers = {"fleet": os.getpid(), "coordinator": coordinator.process, "broker": self.broker.process}
        return {name: _cpu(number) for name, number in numbers.items() if number is not None}


async def run(job: FleetJob, bundle: Bundle) -> FleetFound:
    """Measure one setting in this process."""
    enough_files(job.agents)
    batch = bundle.plan.batch.size
    devices = {f"device-{number:05d}": examples(bundle, batch, number) for number in range(job.agents)}
    with open_broker(job.broker or None) as broker:
        stage = _Stage(job, broker)
        with stage.coordination:
            fleet = AgentFleet(
                broker.url, FLEET, devices, stage.folder / "fleet", threads=job.threads, listener=stage.hear
            )
            found = await _measured(stage, fleet)
    bare_cpu, bare_wall = bare(job, batch)
    parameters = sum(each.nbytes for each in bundle.model.values())
    return msgspec.structs.replace(found, bare_cpu=bare_cpu, bare_wall=bare_wall, parameters=parameters)


async def _measured(stage: _Stage, fleet: AgentFleet) -> FleetFound:
    """One run of a fleet, whose first round is not counted."""
    job, began = stage.job, time.perf_counter()
    async with fleet:
        await _until(stage, fleet, lambda: fleet.connected == job.agents)
        connected = time.perf_counter() - began
        run_id = await stage.start()
        await _until(stage, fleet, lambda: stage.round >= 1)
        since, before = time.perf_counter(), stage.cpu()
        await _until(stage, fleet, lambda: stage.round > job.rounds)
        seconds, after = time.perf_counter() - since, stage.cpu()
        while (await stage.coordination.status(run_id)).status == Status.RUNNING:  # noqa: ASYNC110  another process's state
            await asyncio.sleep(5 * _LOOK)
        gc.collect()
        memory, state = pss() or 0, _held(stage.folder / "fleet")
        traffic = fleet.traffic
    with stage.coordination.journal() as journal:
        counted = journal.counted(run_id)
    return FleetFound(
        seconds=seconds,
        rounds=job.rounds,
        cpu={name: after[name] - before[name] for name in after},
        reports=sum(count for round_, count in counted.items() if round_ <= job.rounds + 1),
        bare_cpu=0.0,
        bare_wall=0.0,
        connect_seconds=connected,
        pss=memory,
        state=state,
        parameters=0,
        bytes_out=traffic.bytes_out,
        bytes_in=traffic.bytes_in,
        messages=traffic.messages_in + traffic.messages_out,
    )


async def _until(stage: _Stage, fleet: AgentFleet, reached: Callable[[], bool]) -> None:
    """Wait until the fleet has come so far.

    Raises:
        RunError: it does not, or a process ended by itself.
    """
    deadline = time.monotonic() + _PATIENCE
    while not reached():
        fleet.check()
        stage.coordination.process.check()
        if time.monotonic() > deadline:
            raise RunError(f"no round within {_PATIENCE:.0f} s", where=f"{stage.job.agents} agents")
        await asyncio.sleep(_LOOK)


def bare(job: FleetJob, batch: int) -> tuple[float, float]:
    """Seconds of processor time and of the clock that one device's steps take, with nothing around them.

    As many threads take them as the fleet works with, each with memory of its own.
    """
    loops = [onnx(Job(job.model, batch, 1, Path(job.bundle))) for _ in range(job.threads)]
    each = -(-job.repeats // job.threads) * job.steps

    def take(step: Callable[[], float], times: int) -> None:
        for _ in range(times):
            step()

    with ThreadPoolExecutor(job.threads) as pool:
        list(pool.map(take, loops, [job.steps] * job.threads))  # warm
        cpu, began = time.process_time(), time.perf_counter()
        list(pool.map(take, loops, [each] * job.threads))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    rounds = each / job.steps
    return cpu / (rounds * job.threads), wall / rounds


def _cpu(process: int) -> float:
    spent = psutil.Process(process).cpu_times()
    return float(spent.user + spent.system)


def _held(folder: Path) -> int:
    """Bytes that a directory's files take in memory; 0 where it is on a disk.

    A database's index of its log is mapped, and counts with the process.
    """
    if not folder.is_relative_to(MEMORY):
        return 0
    return sum(512 * each.stat().st_blocks for each in folder.rglob("*") if each.is_file() and each.suffix != ".db-shm")


def main(words: list[str]) -> int:
    """Measure what the job says."""
    job = msgspec.json.decode(words[0], type=FleetJob)
    found = asyncio.run(run(job, unpack(Path(job.bundle).read_bytes(), golden=False)))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
