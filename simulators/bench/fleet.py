"""``edgepfl bench fleet``: what a device's round costs besides its arithmetic, with real agents over real MQTT.  Pure.

One setting is a fleet of agents in one process, a coordinator and a broker in processes of their own.  All devices take
part in every round.  A first round warms up; over the others the processor time of the three processes is divided by
the device-rounds that were committed.  Beside it stands the *bare loop*: as many minibatch steps, on the same graphs,
runner, threads and process, with nothing else around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from simulators.report.table import as_markdown, as_text

PROCESSES = ("fleet", "coordinator", "broker")
"""Whose processor time is measured."""

HEAD = (
    "setting",
    "agents",
    "s/round",
    "CPU ms/device-round",
    "fleet",
    "coordinator",
    "broker",
    "bare CPU ms",
    "CPU ratio",
    "wall ratio",
    "KiB/agent",
    "lost",
)


class FleetJob(msgspec.Struct, frozen=True):
    """What one process measures.

    Attributes:
        agents: how many.
        algorithm: its name.
        model: a name in :data:`simulators.bench.models.MODELS`.
        bundle: path of the exported graphs.
        folder: where state and logs go.
        broker: URL of a broker to use; empty starts a private one.
        rounds: that are measured; one more warms up.
        steps: minibatch steps of a round.
        cohort: devices of a round; 0: all of them.
        threads: tasks that the fleet works on at once.
        repeats: bare rounds of one device that are measured.
    """

    agents: int
    algorithm: str
    model: str
    bundle: str
    folder: str
    broker: str = ""
    rounds: int = 10
    steps: int = 5
    cohort: int = 0
    threads: int = 2
    repeats: int = 100

    @property
    def selected(self) -> int:
        """Devices that a round selects."""
        return self.cohort or self.agents


class FleetFound(msgspec.Struct, frozen=True):
    """What one process measured.

    Attributes:
        seconds: of the measured rounds, from commit to commit.
        rounds: how many those are.
        cpu: seconds of processor time meanwhile, by process: see :data:`PROCESSES`.
        reports: that count, over all training rounds.
        bare_cpu: seconds of processor time of one device's steps in a bare loop.
        bare_wall: seconds of one device's steps, on so many threads at once as the fleet works with.
        connect_seconds: until every agent was connected.
        pss: bytes of the fleet's process after the last round, beside what its state takes in memory-backed files.
        state: bytes of the devices' files where they are in memory; 0 on a disk.
        parameters: bytes of the model's parameters.
        bytes_out: that the agents sent in all, as MQTT packets.
        bytes_in: that they received.
        messages: both ways, MQTT PUBLISH packets.
    """

    seconds: float
    rounds: int
    cpu: dict[str, float]
    reports: int
    bare_cpu: float
    bare_wall: float
    connect_seconds: float
    pss: int
    state: int
    parameters: int
    bytes_out: int
    bytes_in: int
    messages: int


class FleetRow(msgspec.Struct, frozen=True):
    """One setting.

    Attributes:
        agents: how many.
        cohort: devices of a round.
        algorithm: its name.
        model: its name.
        steps: minibatch steps of a round.
        rounds: that were measured.
        seconds_per_round: by the clock.
        cpu_ms: milliseconds of processor time of one device's round, by process.
        bare_ms: of its steps in a bare loop.
        bare_wall_ms: of its steps by the clock, on as many threads as the fleet has, divided by them.
        connect_seconds: until every agent was connected.
        kib_per_agent: KiB that each further agent takes, its files in memory included; None if it was not measured.
        parameter_kib: KiB of the model's parameters.
        kb_per_round: of MQTT packets of one device's round, both ways.
        lost: reports that should count and do not.
    """

    agents: int
    cohort: int
    algorithm: str
    model: str
    steps: int
    rounds: int
    seconds_per_round: float
    cpu_ms: dict[str, float]
    bare_ms: float
    bare_wall_ms: float
    connect_seconds: float
    kib_per_agent: float | None
    parameter_kib: float
    kb_per_round: float
    lost: int

    @property
    def total_ms(self) -> float:
        """Milliseconds of processor time of one device's round, over all processes."""
        return sum(self.cpu_ms.values())

    @property
    def cpu_ratio(self) -> float:
        """Processor time against the bare loop's."""
        return self.total_ms / self.bare_ms

    @property
    def wall_ratio(self) -> float:
        """A round's seconds against those of the bare loop, on as many threads."""
        return 1000 * self.seconds_per_round / (self.cohort * self.bare_wall_ms)


def row(job: FleetJob, found: FleetFound, alone: FleetFound | None) -> FleetRow:
    """What a setting comes to.

    Args:
        job: the setting.
        found: what its process measured.
        alone: what the process of a fleet of one measured; None: memory is not told.
    """
    device_rounds = found.rounds * job.selected
    all_rounds = (found.rounds + 1) * job.selected
    return FleetRow(
        agents=job.agents,
        cohort=job.selected,
        algorithm=job.algorithm,
        model=job.model,
        steps=job.steps,
        rounds=found.rounds,
        seconds_per_round=found.seconds / found.rounds,
        cpu_ms={name: 1000 * found.cpu[name] / device_rounds for name in PROCESSES if name in found.cpu},
        bare_ms=1000 * found.bare_cpu,
        bare_wall_ms=1000 * found.bare_wall / job.threads,
        connect_seconds=found.connect_seconds,
        kib_per_agent=_each(job.agents, found, alone),
        parameter_kib=found.parameters / 1024,
        kb_per_round=(found.bytes_in + found.bytes_out) / all_rounds / 1000,
        lost=all_rounds - found.reports,
    )


def _each(agents: int, found: FleetFound, alone: FleetFound | None) -> float | None:
    """KiB of each agent beyond the first."""
    if alone is None or agents < 2:  # noqa: PLR2004  one agent is what is compared with
        return None
    return (found.pss + found.state - alone.pss - alone.state) / (agents - 1) / 1024


def text(rows: Sequence[FleetRow]) -> str:
    """The rows as a table for a terminal."""
    return as_text(HEAD, [_cells(each) for each in rows])


def markdown(rows: Sequence[FleetRow]) -> str:
    """The rows as a table for a page."""
    return as_markdown(HEAD, [_cells(each) for each in rows])


def as_json(each: FleetRow) -> Mapping[str, object]:
    """A row for a program, with what is derived from it."""
    derived = {"total_ms": each.total_ms, "cpu_ratio": each.cpu_ratio, "wall_ratio": each.wall_ratio}
    return {**msgspec.structs.asdict(each), **derived}


def _cells(each: FleetRow) -> tuple[str, ...]:
    of = "" if each.cohort == each.agents else f", {each.cohort} a round"
    return (
        f"{each.algorithm}, {each.model}{of}",
        f"{each.agents:,}",
        f"{each.seconds_per_round:.3f}",
        f"{each.total_ms:.2f}",
        *(f"{each.cpu_ms[name]:.2f}" if name in each.cpu_ms else "-" for name in PROCESSES),
        f"{each.bare_ms:.2f}",
        f"{each.cpu_ratio:.2f}x",
        f"{each.wall_ratio:.2f}x",
        "-" if each.kib_per_agent is None else f"{each.kib_per_agent:,.0f}",
        str(each.lost),
    )
