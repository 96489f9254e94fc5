"""An emulation's report, from what the coordinator's journal and the devices' own words hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from coordinator.journal import Journal, Result, RoundCost
from coordinator.status import means
from device_agent.session import TaskId
from edgepfl.bus import Traffic
from simulators.emulated import NOTHING
from simulators.emulation.chronicle import REFUSED
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import OF_NO_DEVICE, Fault, Scenario
from simulators.emulation.sightings import Sightings

MODELS = ("global", "personal")
REPORT = "report"
"""The reason of reports, and of their uploads, that the coordinator looked at and could not use."""


@dataclass(frozen=True)
class Journalled:
    """What the coordinator holds of a run for good.

    Attributes:
        results: of every report that counts.
        costs: of each committed round.
        quarantined: devices that were left out after failures.
    """

    results: tuple[Result, ...] = ()
    costs: Mapping[int, RoundCost] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()

    @classmethod
    def of(cls, journal: Journal, run: str) -> Journalled:
        """What a journal holds of a run."""
        conduct = journal.conduct(run)
        return cls(journal.results(run), journal.costs(run), tuple(d for d, each in conduct.items() if each.times))


@dataclass(frozen=True)
class Fleetwide:
    """What the devices' side gives.

    Attributes:
        sent: the reports that devices sent, with whose they are.
        cancelled: those that the coordinator said it does not want.
        pending: devices that do not know what became of their last report.
        stories: by device.
        traffic: at all sockets together.
        joules: by device.
        happened: places of the scenario's faults that happened.
    """

    sent: frozenset[tuple[str, TaskId]] = frozenset()
    cancelled: frozenset[tuple[str, TaskId]] = frozenset()
    pending: tuple[str, ...] = ()
    stories: Mapping[str, tuple[Told, ...]] = field(default_factory=dict)
    traffic: Traffic = NOTHING
    joules: Mapping[str, float] = field(default_factory=dict)
    happened: frozenset[int] = frozenset()


def together(*parts: Fleetwide) -> Fleetwide:
    """What several processes' devices give."""
    stories: dict[str, tuple[Told, ...]] = {}
    joules: dict[str, float] = {}
    traffic = NOTHING
    for part in parts:
        stories |= part.stories
        joules |= part.joules
        traffic += part.traffic
    return Fleetwide(
        frozenset[tuple[str, TaskId]]().union(*(part.sent for part in parts)),
        frozenset[tuple[str, TaskId]]().union(*(part.cancelled for part in parts)),
        tuple(sorted(name for part in parts for name in part.pending)),
        dict(sorted(stories.items())),
        traffic,
        joules,
        frozenset[int]().union(*(part.happened for part in parts)),
    )


def lost(fleet: Fleetwide, journalled: Journalled, run: str) -> int:
    """Reports of committed rounds that came to nothing for no reason, and devices that do not know what became of one.

    A report counts, or was refused, or came after its round no longer waited for it, or was cancelled, or was of an
    attempt that was abandoned: all these are told.  Whatever is left is lost.
    """
    counted = {(result.device, result.base) for result in journalled.results}
    known = counted | {
        (device, task.round)
        for device, task in fleet.cancelled
        if task.run == run and _of_committed(task, journalled.costs)
    }
    for number, cost in journalled.costs.items():
        without = cost.without
        known |= {(device, number) for device in (*without.refused, *without.failed, *without.released)}
    waiting = set(fleet.pending)
    missing = [
        (device, task)
        for device, task in fleet.sent
        if task.run == run and device not in waiting and _of_committed(task, journalled.costs)
    ]
    return len(waiting) + sum((device, task.round) not in known for device, task in missing)


def _of_committed(task: TaskId, costs: Mapping[int, RoundCost]) -> bool:
    """Whether a task is of the attempt that was committed."""
    return task.round in costs and task.attempt == costs[task.round].abandoned


def report_of(
    scenario: Scenario,
    seen: Sightings,
    journalled: Journalled,
    fleet: Fleetwide,
    *,
    parameters: int,
    broker: str,
    pss_mib: Mapping[str, float],
    model: str,
) -> EmulationReport:
    """What came of an emulation.

    Args:
        scenario: that was emulated.
        seen: of the run.
        journalled: of the run.
        fleet: the devices' side.
        parameters: bytes of the model.
        broker: its kind.
        pss_mib: greatest proportional set size by process.
        model: what was trained.
    """
    last, costs = seen.last, journalled.costs
    run = last.run if last is not None else ""
    accuracies = _accuracies(journalled.results)
    return EmulationReport(
        scenario=scenario.name,
        seed=scenario.seed,
        time=scenario.time,
        broker=broker,
        algorithm=scenario.work.algorithm,
        model=model,
        agents=scenario.fleet.agents,
        parameters=parameters,
        run=run,
        status=last.status if last is not None else "",
        why=last.why if last is not None else "",
        rounds=len(costs),
        seconds={number: cost.seconds for number, cost in costs.items() if number <= scenario.run.rounds},
        reports=dict(Counter(result.round for result in journalled.results)),
        counted=dict(Counter(device for device, _ in {(each.device, each.round) for each in journalled.results})),
        lost=lost(fleet, journalled, run),
        abandoned=sum(cost.abandoned for cost in costs.values()) + _unfinished(seen),
        bytes_in={number: cost.bytes_in for number, cost in costs.items()},
        bytes_out={number: cost.bytes_out for number, cost in costs.items()},
        fleet_bytes_in=fleet.traffic.bytes_in,
        fleet_bytes_out=fleet.traffic.bytes_out,
        pss_mib=dict(pss_mib),
        accuracy=accuracies,
        metrics=means(journalled.results),
        refused=_refused(seen, costs.values()),
        doubled=dict(seen.doubled),
        quarantined=journalled.quarantined,
        waits=seen.waits,
        stories=explained(fleet.stories, costs),
        state_sha256=last.state_sha256 if last is not None else "",
        joules=dict(fleet.joules),
        missed=tuple(_in_words(fault) for place, fault in enumerate(scenario.faults) if place not in fleet.happened),
    )


def _in_words(fault: Fault) -> str:
    """A fault with its time, and why it may never have come."""
    if fault.at is not None:
        return f"{fault.kind} at = {fault.at:g}: the run was over before"
    if fault.during is not None:
        whom = "nobody had" if fault.kind in OF_NO_DEVICE else "none of its devices had"
        return f"{fault.kind} during = {fault.during}: {whom} a task of that round"
    return f"{fault.kind} after = {fault.after}: that round was not committed"


def explained(stories: Mapping[str, tuple[Told, ...]], costs: Mapping[int, RoundCost]) -> dict[str, tuple[Told, ...]]:
    """The stories, and why each refused report was refused: the device is not told, and the coordinator knows."""
    why = {(device, number): text for number, cost in costs.items() for device, text in _reasons(cost)}
    concerned = {device for device, _ in why}

    def line(device: str, told: Told) -> Told:
        text = why.get((device, told.round), "") if told.what == REFUSED and not told.detail else ""
        return msgspec.structs.replace(told, detail=text) if text else told

    return {
        device: tuple(line(device, told) for told in lines) if device in concerned else lines
        for device, lines in stories.items()
    }


def _reasons(cost: RoundCost) -> Iterator[tuple[str, str]]:
    """Why devices with the task of a round have no report in it."""
    without = cost.without
    yield from without.refused.items()
    yield from without.failed.items()
    yield from ((device, "the round was over") for device in without.released)


def _unfinished(seen: Sightings) -> int:
    """Abandoned attempts at a round that was never committed."""
    return seen.abandoned if seen.last is not None and seen.last.status in {"failed", "stopped"} else 0


def _refused(seen: Sightings, costs: Iterable[RoundCost]) -> dict[str, int]:
    reports = sum(len(cost.without.refused) for cost in costs)
    return seen.refused | ({REPORT: reports} if reports else {})


def _accuracies(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Each device's last accuracy, by model."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for result in results:  # in the order of the rounds
        for model in MODELS:
            if (value := result.metrics.get(f"accuracy.{model}")) is not None:
                found[model][result.device] = value
    return dict(found)
