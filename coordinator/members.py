"""Hubs as their parent sees them: devices that report for the devices behind them.

A device under hub ``north`` is ``north/NAME`` to the parent, so it can be called like one of the parent's own or of
another hub.  Its report is a part of the hub's: who it is, how much it weighs and what it measured, while its upload is
in the hub's sums.  A hub multiplies what one name may weigh, so only those count that the coordinator's settings name,
each with the most devices that it may speak for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from coordinator.devices import Fleet
from coordinator.journal import Result
from coordinator.reports import counted, result_of
from coordinator.screen import check_report
from edgepfl.algorithms import Algorithm
from edgepfl.errors import CodecError, ConfigError
from edgepfl.plan import Plan, Reduce, Role
from edgepfl.wire import Hello, Report

Hubs = Mapping[str, int]
"""The most devices that each hub may speak for."""


def of(hello: Hello) -> tuple[str, ...]:
    """The members that a hub says are with it; empty for a device."""
    return hello.members or ()


def speaks_for_itself(hello: Hello, hubs: Hubs) -> bool:
    """Whether whoever says Hello is a hub if and only if it is known as one."""
    return not silenced(hello, hubs)


def silenced(hello: Hello, hubs: Hubs) -> str:
    """Why whoever says Hello takes no part; empty if it may."""
    names, most = len(of(hello)), hubs.get(hello.device)
    if most is None:
        return "it speaks for others, and is none of the hubs in the coordinator's settings" if names else ""
    if names > most:
        return f"it speaks for {names} devices, and the coordinator's settings allow it {most}"
    return "" if names else "it is a hub in the coordinator's settings, and no device is with it"


def named(devices: Iterable[str], fleet: Fleet) -> tuple[str, ...]:
    """These devices, and after each hub its members."""
    found: list[str] = []
    for device in devices:
        found.append(device)
        if device in fleet.devices:
            found += [f"{device}/{below}" for below in sorted(set(of(fleet.devices[device].hello)))]
    return tuple(found)


def owner(name: str) -> str:
    """The device at which a member is to be reached: its hub, or itself."""
    return name.partition("/")[0]


def training(names: Collection[str], hubs: Hubs) -> tuple[str, ...]:
    """The devices among these that train themselves, in the order of their names."""
    return tuple(sorted(name for name in names if name not in hubs))


def settings(plan: Plan, hyper: Mapping[str, float | str]) -> dict[str, float | str]:
    """The settings of a run that shape what a hub does with uploads: those that devices never see."""
    return {name: value for name, value in hyper.items() if name in plan.server}


def results_of(report: Report) -> tuple[Result, ...]:
    """What the journal keeps of a report once it counts: one result of its device, and one of each member."""
    own = result_of(report)
    return own, *(
        Result(report.round, f"{report.device}/{part.device}", part.examples, part.steps, part.metrics, {}, "")
        for part in report.members
    )


def counted_of(reports: Iterable[Report], number: int) -> tuple[Result, ...]:
    """All of these reports' results, as they count in the update of round ``number``."""
    return tuple(counted(result, number) for report in reports for result in results_of(report))


def check(
    report: Report,
    plan: Plan,
    *,
    hubs: Hubs,
    steps: int,
    max_examples: int,
    most_bytes: int,
    words: str = "",
    masked: int = 0,
) -> None:
    """Refuse a report, of a device or a hub, whose upload is not worth fetching.

    Args:
        report: well-formed, from a member of the cohort.
        plan: what was declared.
        hubs: who may speak for others.
        steps: that the round has; 0 where it trains nothing.
        max_examples: the most that one device may claim.
        most_bytes: the most that a hub's sums can have.
        words: the run's codec, for uploads of devices.
        masked: bytes of a masked upload; 0 where none is masked.

    Raises:
        CodecError: see :func:`coordinator.screen.check_report`; or a device speaks for others, or a hub for none, for
            too many, for one twice, or not as the sum and the greatest of what it says of them.
    """
    where = f"report of {report.device}"
    if report.device not in hubs:
        if report.members:
            raise CodecError("it speaks for others, and is none of the hubs in the coordinator's settings", where=where)
        check_report(report, plan, steps=steps, max_examples=max_examples, words=words, masked=masked)
        return
    _check_members(report, hubs[report.device], where)
    if (report.upload is None) != (steps == 0):
        raise CodecError(f"it has {'no' if steps else 'an'} upload in a round of {steps} steps", where=where)
    for part in report.members if steps else ():
        if not 0 < part.examples <= max_examples or not 0 < part.steps <= steps:
            raise CodecError(
                f"it says that {part.device} took {part.steps} of {steps} steps on {part.examples} examples, of which "
                f"{max_examples} are allowed",
                where=where,
            )
    if report.upload is not None and report.upload.size > most_bytes:
        raise CodecError(f"sums of {report.upload.size} bytes, at most {most_bytes} are possible", where=where)


def check_summable(algorithm: Algorithm, plan: Plan, who: str, robust: str = "") -> None:
    """Refuse an algorithm that a sum over devices is not enough for.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        who: the hubs that sum, for the error.
        robust: the run's robust rule, in words.

    Raises:
        ConfigError: with the reason.
    """
    ups = {name: slot.reduce for name, slot in plan.by_role(Role.UP).items()} | dict(algorithm.rebuilt)
    single = sorted(name for name, reduce in ups.items() if reduce is Reduce.STACK)
    own = plan.addressed
    if single or own or robust:
        why = f"{plan.algorithm} sends each device its own {' and '.join(own)}"
        why = f"{plan.algorithm} needs each device's own {' and '.join(single)}" if single else why
        why = f"{robust} looks at each device's own upload" if robust else why
        raise ConfigError(
            f"{why}, and {who} sums up over its devices",
            where="hub",
            remedy="Set relay = true in the hub's settings, and leave it out of the coordinator's hubs",
        )


def _check_members(report: Report, most: int, where: str) -> None:
    names = [part.device for part in report.members]
    if not 0 < len(names) <= most:
        raise CodecError(f"it speaks for {len(names)} devices, and may for 1 to {most}", where=where)
    if names != sorted(set(names)):
        raise CodecError("its devices are not each named once, in order", where=where)
    claimed = (report.examples, report.steps)
    if claimed != (sum(p.examples for p in report.members), max(p.steps for p in report.members)):
        raise CodecError("its examples and steps are not those of its devices", where=where)
