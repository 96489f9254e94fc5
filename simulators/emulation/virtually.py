"""A scenario in virtual time, with the same report as in real time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from coordinator.config import RunConfig
from coordinator.status import RunStatus
from device_agent.session import TaskId
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from simulators.datasets import FleetData
from simulators.emulated import NOTHING
from simulators.emulation.gear import lives_of, runtimes_of
from simulators.emulation.inflicting import meant
from simulators.emulation.outcome import Fleetwide, Journalled, report_of
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import OF_NO_DEVICE, Fault, Scenario
from simulators.emulation.sightings import Sightings
from simulators.emulation.work import bundle_of, config_of, data_of
from simulators.profiles import DAY, Life
from simulators.virtual import Entry, Incident, Simulated, VirtualDevice, simulate

LOG = "events.jsonl"
KINDS: Mapping[str, str] = {
    "kill": "kill",
    "cut": "cut",
    "silence": "silence",
    "quota": "full",
    "broker": "broker",
    "coordinator": "coordinator",
}
"""The kinds of faults that virtual time knows, and what it calls them."""
LASTING = frozenset({"kill", "quota"})
"""The kinds that last for good where a fault does not say for how long."""
WORDS: Mapping[str, str] = {"selected": "task", "online": "connected", "offline": "disconnected"}
"""What stories call what its log calls otherwise."""


def emulate_virtually(
    scenario: Scenario,
    folder: Path,
    data: FleetData | None,
    bundle: Bundle | None,
    see: Callable[[RunStatus], None],
) -> EmulationReport:
    """Carry a scenario out in virtual time; the log of all events is ``events.jsonl`` in the folder.

    Args:
        scenario: its run ends after a day of virtual time at the latest.
        folder: for state and log.
        data: the fleet's; None: as the scenario says.
        bundle: likewise.
        see: told of each committed round.

    Raises:
        ConfigError: the scenario has a fault that virtual time does not know.
    """
    data = data or data_of(scenario)
    names = tuple(data.devices)
    incidents = tuple(_incidents(scenario, names))  # before graphs are built, which takes long
    lives = lives_of(scenario.fleet, names, scenario.seed, DAY)
    bundle = bundle or bundle_of(scenario, data, runtimes_of(lives))
    config = config_of(scenario)
    folder.mkdir(parents=True, exist_ok=True)
    found = simulate(
        bundle,
        config,
        {name: VirtualDevice(data.devices[name], life.profile, life) for name, life in lives.items()},
        seed=scenario.seed,
        until=DAY,
        incidents=incidents,
        log=folder / LOG,
        see=lambda _, number: see(_status(number, config, lives)),
    )
    return _report(scenario, found, bundle)


def _status(number: int, config: RunConfig, lives: Mapping[str, Life]) -> RunStatus:
    """What is known of a run after a committed round, for whoever shows progress."""
    return RunStatus("", "running", "", number, config.rounds, "", "", tuple(lives), {}, "")


def incidents(scenario: Scenario, names: tuple[str, ...]) -> tuple[Incident, ...]:
    """A scenario's faults, as virtual time has them.

    Args:
        scenario: with the faults.
        names: of the devices.

    Raises:
        ConfigError: virtual time does not know one.
    """
    return tuple(_incidents(scenario, names))


def _incidents(scenario: Scenario, names: tuple[str, ...]) -> Iterator[Incident]:
    for number, fault in enumerate(scenario.faults):
        if unknown := _unknown(fault):
            raise ConfigError(
                f"virtual time does not know {unknown}",
                where=f"faults, {fault.kind}",
                remedy=f"Use {', '.join(KINDS)} with at = SECONDS, or real time",
            )
        devices = ("",) if fault.kind in OF_NO_DEVICE else meant(fault, names, scenario.seed, number)
        for device in devices:
            lasts = fault.until or (DAY if fault.kind in LASTING else 0.0)
            yield Incident(fault.at or 0.0, KINDS[fault.kind], device, lasts)  # type: ignore[arg-type]  # its kinds


def _unknown(fault: Fault) -> str:
    """What of a fault virtual time does not know; empty: nothing."""
    if fault.kind not in KINDS:
        return f"the fault {fault.kind!r}"
    for name in ("after", "during", "through"):
        if getattr(fault, name) is not None:
            return f"{name!r} of a fault"
    if fault.kind == "silence" and fault.until:
        return "'until' of silence: a new connection works at once"
    if fault.kind == "quota" and fault.values["mib"]:
        return "a quota above mib = 0: a disk is full, or it is not"
    return ""


def _report(scenario: Scenario, found: Simulated, bundle: Bundle) -> EmulationReport:
    seen = Sightings()
    seen.see(found.status)
    attempts = {number: cost.abandoned for number, cost in found.costs.items()}
    traffic = NOTHING
    for each in found.traffic.values():
        traffic += each
    fleet = Fleetwide(
        sent=frozenset((who, TaskId(found.run, number, attempts.get(number, 0))) for who, number in sent(found.log)),
        stories=stories_of(found.log, frozenset(found.traffic)),
        traffic=traffic,
        joules=found.joules,
        happened=frozenset(place for place, fault in enumerate(scenario.faults) if (fault.at or 0.0) <= found.seconds),
    )
    return report_of(
        scenario,
        seen,
        Journalled(found.results, found.costs, found.quarantined),
        fleet,
        parameters=sum(each.nbytes for each in bundle.model.values()),
        broker="loopback",
        pss_mib={},
        model=bundle.plan.title or scenario.work.model,
    )


def sent(log: Iterable[Entry]) -> frozenset[tuple[str, int]]:
    """(device, round) of each report of the attempt that was committed.

    Whoever was in an attempt that was abandoned is dropped then, and may send its report again when it comes back.
    """
    found: set[tuple[str, int]] = set()
    asked: set[tuple[str, int]] = set()
    committed: set[int] = set()
    for entry in log:
        this = entry.who, entry.round
        if entry.what in {"selected", "task again"}:
            asked.add(this)
        elif entry.what == "report" and this in asked:
            found.add(this)
        elif entry.what == "committed":
            committed.add(entry.round)
        elif entry.what == "dropped" and entry.round not in committed:
            asked.discard(this)
            found.discard(this)
    return frozenset(found)


def stories_of(log: Iterable[Entry], devices: frozenset[str]) -> dict[str, tuple[Told, ...]]:
    """What the log says of each device, in the words of stories."""
    found: dict[str, list[Told]] = defaultdict(list)
    for entry in log:
        if entry.who in devices:
            found[entry.who].append(Told(entry.at, WORDS.get(entry.what, entry.what), entry.round, entry.detail))
    return {device: tuple(found[device]) for device in sorted(devices)}
