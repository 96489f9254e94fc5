"""A simulation in virtual time, as records: who takes part, what goes wrong, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from coordinator.journal import Result, RoundCost
from coordinator.status import RunStatus
from device_agent.data import Examples
from edgepfl.bus import Traffic
from edgepfl.tree import Trees
from simulators.profiles import DeviceProfile, Life, profile


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the event log.

    Attributes:
        at: virtual seconds since the start, to the millisecond.
        who: the device, ``"coordinator"`` or ``"broker"``.
        what: such as "online", "hello", "selected", "work", "step", "report", "accepted", "dropped", "reboot".
        round: of which round; 0: of none.
        detail: for people, and the same on every machine: no numbers that come of floating-point mathematics.
    """

    at: float
    who: str
    what: str
    round: int = 0
    detail: str = ""


@dataclass(frozen=True)
class VirtualDevice:
    """One device of a simulated fleet.

    Attributes:
        examples: its data.
        profile: how fast and how connected it is, and which runtime it has.
        life: when it comes and goes; None: it is there all the time.
    """

    examples: Examples
    profile: DeviceProfile = field(default_factory=lambda: profile("host"))
    life: Life | None = None


@dataclass(frozen=True)
class Incident:
    """Something that goes wrong once, at a time that somebody chose; lives have faults of their own.

    Attributes:
        at: virtual seconds.
        kind: "cut": a device's connection is lost; "silence": it goes half-open; "kill": a device's power is cut;
            "full": its disk is full; "broker" and "coordinator": these are killed.
        device: whose, of the first four.
        seconds: after which it is over.
    """

    at: float
    kind: Literal["cut", "silence", "kill", "full", "broker", "coordinator"]
    device: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Cost:
    """What work costs on a machine of compute factor 1, in seconds: the same on every machine that simulates.

    A call of a graph costs ``fixed + operations / speed``, with :func:`simulators.virtual.pace.operations`.

    Attributes:
        fixed: of each call of a graph.
        speed: floating-point operations a second.
        load: of beginning a task.
        step: of a call that trains, as measured; None: as above.
    """

    fixed: float = 5e-5
    speed: float = 5e9
    load: float = 0.02
    step: float | None = None


@dataclass(frozen=True)
class Settings:
    """How a fleet is simulated.

    Attributes:
        sense_every: seconds between two looks of an agent at its sensors.  They tell it at once when its presence
            changes, so only a battery's level can be older; the real agent asks them every 5 s.
        tick: seconds between two looks of the coordinator at leases and deadlines; the real one's are 0.5.
        keepalive: seconds after which the broker finds that a silent connection is dead.
        back: seconds that an agent waits at most until it connects again.
        quantum: virtual seconds within which a device at work meets what happens; 0: at the next graph call.
        checkpoint_seconds: of training between two checkpoints; 0 for none, and then a pause costs the steps done.
        after: seconds that go on after the run's end, in which devices hear of it.
        steps: log each step of each device, exactly if ``quantum`` is 0.
        cost: of work.
    """

    sense_every: float = 900.0
    tick: float = 2.0
    keepalive: float = 45.0
    back: float = 8.0
    quantum: float = 1.0
    checkpoint_seconds: float = 0.0
    after: float = 60.0
    steps: bool = False
    cost: Cost = Cost()


@dataclass(frozen=True)
class Simulated:
    """What came of a simulation.

    Attributes:
        run: the run's id.
        seconds: virtual, from the start until the run ended or time was up.
        status: the run's last one; its ``status`` is "running" if time was up.
        results: what every accepted report said.
        costs: of each committed round, at the coordinator, with its virtual seconds.
        traffic: at each device's socket, over all its lives.
        joules: that each device drew, where its profile knows.
        quarantined: devices that were left out after failures.
        state: the server's state in the end.
        log: what happened, in order.
    """

    run: str
    seconds: float
    status: RunStatus
    results: tuple[Result, ...]
    costs: Mapping[int, RoundCost]
    traffic: Mapping[str, Traffic]
    joules: Mapping[str, float]
    state: Trees
    log: tuple[Entry, ...]
    quarantined: tuple[str, ...] = ()
