"""What is emulated, as records: the fleet, what goes wrong, the run, and what must come of it.

:mod:`simulators.emulation.scenario_file` reads them from TOML, :mod:`simulators.emulation.expectations` says whether
what came of a scenario is what it expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from coordinator.config import RunConfig

MOST_AGENTS = 100_000
Agents: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_AGENTS)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Round: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]
Part: TypeAlias = Annotated[float, Meta(ge=0, le=1)]

FAULT_VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "link": ("rate", "delay", "loss"),
        "clock": ("skew", "stuck"),
        "quota": ("mib",),
    }
)
"""What a kind of fault may have in its ``values``; a kind that is not here has none."""
OF_NO_DEVICE = ("broker", "coordinator")
"""Faults that happen to the fleet's services, not to devices."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a scenario file: a key that it does not know is an error."""


class FleetTable(Table, frozen=True):
    """``[fleet]``: who takes part.

    Attributes:
        agents: how many devices.
        profiles: shares by the name of a device profile; empty: every device is this machine, without limits.
        profile_file: profiles of one's own beside the known ones.
        trace: when devices are online and charging: "always", "diurnal", or the path of a CSV file.
        churn: how devices come and go by themselves, by the names of the life's settings.
        keepalive: seconds after which an agent that hears nothing asks its broker for a sign of life; a dead connection
            is noticed within about twice as many.
    """

    agents: Agents = 20
    profiles: dict[str, Annotated[float, Meta(gt=0)]] = {}
    profile_file: str = ""
    trace: str = "always"
    churn: dict[str, float] = {}
    keepalive: Annotated[int, Meta(ge=1, le=65535)] = 30


class WorkTable(Table, frozen=True):
    """``[work]``: what is trained, on what.

    Attributes:
        algorithm: its name.
        settings: of the algorithm's hyperparameters.
        model: "mlp-9k", "cnn1d", ..., or ``module:function``; empty: what suits the data.
        data: a data set's name.
        options: of the data set.
        partition: how it is dealt, such as "dirichlet:0.3"; empty: as the data set has it.
        drift: how the data change with the round, such as "labels:abrupt,start=20"; empty: not at all.
        batch: examples of a minibatch.
    """

    algorithm: str = "fedavg"
    settings: dict[str, float | int | bool | str] = {}
    model: str = ""
    data: str = "random"
    options: dict[str, float | int | bool | str] = {}
    partition: str = ""
    drift: str = ""
    batch: Annotated[int, Meta(ge=1, le=1 << 16)] = 32


class Fault(Table, frozen=True):
    """One ``[[faults]]``: something that goes wrong once, or from then on.

    At most one of ``at``, ``after`` and ``during`` says when; none of them: from the start.

    ===========  ============================================  =====================================================
    kind         what goes wrong                               values
    ===========  ============================================  =====================================================
    kill         its power is cut; with ``until`` it comes
                 back then
    cut          its connection is lost
    silence      its connection is half-open: nothing comes
                 through, and nobody is told; a new one works
    link         its link is bad                               rate (bytes/s each way), delay (s each way), loss
                                                               (probability that an MQTT message of QoS 0 is lost)
    clock        its wall clock is wrong                       skew (s ahead) or stuck (at an ISO time)
    quota        its disk is full                              mib (that its blobs may take)
    clone        a second agent comes that has its name and
                 another storage
    nan          its agent sends NaN as its update, and does
                 not look at it before
    leave        it goes, and does not come back
    late         it only comes then
    broker       the broker is killed, and comes back empty
    coordinator  the coordinator is killed, and started again
    ===========  ============================================  =====================================================

    Attributes:
        kind: see above.
        devices: to whom, by name or shell pattern ("device-00*"); a number takes so many by the seed.
        at: seconds since the run began.
        after: as soon as this round is committed.
        during: in this round, as soon as the device has its task; of broker and coordinator, as soon as any has.
        until: seconds that it lasts, counted from its begin; 0: for good.
        through: it is over as soon as this round is committed; None: see ``until``.
        values: what else the kind needs, such as ``{"rate": 100000}`` of a slow link.
    """

    kind: Literal[
        "kill",
        "cut",
        "silence",
        "link",
        "clock",
        "quota",
        "clone",
        "nan",
        "leave",
        "late",
        "broker",
        "coordinator",
    ]
    devices: tuple[str, ...] | Annotated[int, Meta(ge=1)] = ()
    at: Seconds | None = None
    after: Round | None = None
    during: Round | None = None
    until: Seconds = 0.0
    through: Round | None = None
    values: dict[str, float | str] = {}

    def __post_init__(self) -> None:
        given = [name for name in ("at", "after", "during") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"it has {' and '.join(given)}: one of at, after and during says when it happens")
        if self.kind in OF_NO_DEVICE and self.devices != ():
            raise ValueError(f"{self.kind} happens to no device: leave out devices")
        if self.kind not in OF_NO_DEVICE and self.devices == ():
            raise ValueError(f"{self.kind} needs devices: names, patterns such as 'device-00*', or how many")
        if self.kind in OF_NO_DEVICE and self.through is not None:
            raise ValueError(f"{self.kind} takes no through: without it no round is committed")
        if self.until and self.through is not None:
            raise ValueError("it has until and through: one of them says when it is over")
        if self.kind == "late" and self.at is None and self.after is None:
            raise ValueError("late takes at or after: when it comes; a device that is not there has no task")
        begin = self.after if self.after is not None else self.during
        if self.through is not None and begin is not None and self.through < begin + (self.after is not None):
            raise ValueError(f"it begins after it is over: through = {self.through} is committed already")
        allowed = FAULT_VALUES.get(self.kind, ())
        for name in self.values:
            if name not in allowed:
                has = f"values of {self.kind} are {', '.join(allowed)}" if allowed else f"{self.kind} has no values"
                raise ValueError(f"there is no value {name!r}: {has}")
        if allowed and not self.values:
            raise ValueError(f"{self.kind} needs values: {', '.join(allowed)}")
        for name, value in self.values.items():
            _check_value(name, value)

    @property
    def lasts(self) -> bool:
        """Whether it is over at some time, and all is well again."""
        return bool(self.until) or self.through is not None


def _check_value(name: str, value: float | str) -> None:
    """Refuse a value of a fault that it cannot have.

    Raises:
        ValueError: it is one.
    """
    if name == "stuck":
        try:
            datetime.fromisoformat(str(value))
        except ValueError:
            raise ValueError(f"stuck = {value!r} is no time: give one such as '1970-01-01T00:00:00'") from None
        return
    if isinstance(value, str):
        raise ValueError(f"{name} = {value!r} is no number")  # noqa: TRY004  msgspec turns this error into its own
    most = 1.0 if name == "loss" else 1e12
    least = -most if name == "skew" else 0.0
    if not least <= value <= most:
        raise ValueError(f"{name} = {value:g} is out of range: {least:g} to {most:g}")


class Expectations(Table, frozen=True):
    """``[expect]``: what must have come of it; what is not given is not looked at.

    Attributes:
        status: how the run ended: "done", "failed" or "stopped".
        rounds: of training that were committed, at least.
        lost: reports that were sent and came to nothing, at most.
        abandoned: attempts at a round that came to nothing, at most.
        reported: devices whose reports count in every round, at least.
        counted: rounds in which the reports of a device count, at least, by its name or pattern.
        uncounted: devices of which no report counts.
        mean: of the personal models' accuracies, at least.
        worst_decile: likewise.
        bytes_per_round: at the coordinator's socket, in and out, at most.
        seconds_per_round: at most; only where it is a promise and not a speed: machines differ.
        longest_round: seconds of the longest round, at most; likewise.
        told: texts, each of which a line of a device's story, of the run's waits or of the coordinator's words holds;
            ``*`` stands for anything in between.
        refused: messages or reports refused by reason, at least so many.
        doubled: devices that are named as cloned.
        quarantined: devices that were left out after failures.
        same_model: the final model is, bit for bit, that of the same scenario without its faults.
    """

    status: Literal["done", "failed", "stopped"] = "done"
    rounds: Round | None = None
    lost: Count | None = None
    abandoned: Count | None = None
    reported: Count | None = None
    counted: dict[str, Count] = {}
    uncounted: tuple[str, ...] = ()
    mean: Part | None = None
    worst_decile: Part | None = None
    bytes_per_round: Annotated[float, Meta(ge=0)] | None = None
    seconds_per_round: Seconds | None = None
    longest_round: Seconds | None = None
    told: tuple[str, ...] = ()
    refused: dict[str, Count] = {}
    doubled: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    same_model: bool = False


class Scenario(Table, frozen=True):
    """A scenario file.

    Attributes:
        name: for people.
        about: what it shows.
        seed: of everything random.
        time: "real" over MQTT, or "virtual".
        broker: "auto", "mosquitto", "iotcore" or a URL.
        fleet: see :class:`FleetTable`.
        work: see :class:`WorkTable`.
        run: as ``edgepfl run start`` has it.
        faults: in any order.
        expect: see :class:`Expectations`.
    """

    name: str = "emulation"
    about: str = ""
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    time: Literal["real", "virtual"] = "real"
    broker: str = "auto"
    fleet: FleetTable = FleetTable()
    work: WorkTable = WorkTable()
    run: RunConfig = RunConfig()
    faults: tuple[Fault, ...] = ()
    expect: Expectations = Expectations()

    def __post_init__(self) -> None:
        if self.run.goal > self.fleet.agents:
            raise ValueError(f"the run's goal ({self.run.goal}) is above the fleet's agents ({self.fleet.agents})")
        last = self.run.rounds + 1  # which only evaluates
        for fault in self.faults:
            for name, number, most in (("during", fault.during, last), ("after", fault.after, last - 1)):
                if number is not None and number > most:
                    raise ValueError(
                        f"{fault.kind} never happens: {name} = {number}, and the last such round is {most}"
                    )
            if isinstance(fault.devices, int) and fault.devices > self.fleet.agents:
                raise ValueError(
                    f"{fault.kind} is to happen to {fault.devices} devices, and there are {self.fleet.agents}"
                )


def without_faults(scenario: Scenario) -> Scenario:
    """The same fleet, work and run, and nothing goes wrong: what ``same_model`` compares with."""
    return msgspec.structs.replace(scenario, faults=(), expect=Expectations())
