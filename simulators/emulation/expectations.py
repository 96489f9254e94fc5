"""Whether what came of an emulation is what its scenario expects: pure, and in words that name what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Expectations

LINES = 8
"""Of a device's story that a failure shows: the last ones."""
_SHOWN = 3  # devices whose stories a failure shows
ACCEPTED = "accepted"
"""What a story says when a report counts."""


def failures(
    report: EmulationReport, expect: Expectations, *, faultless: EmulationReport | None = None
) -> tuple[str, ...]:
    """What came otherwise than expected: what was expected, what was found, and the story of the device concerned.

    Args:
        report: what came of the scenario.
        expect: what must have.
        faultless: what came of it without its faults, see :func:`~simulators.emulation.scenario.without_faults`;
            ``same_model`` needs it.
    """
    return (
        *_ending(report, expect),
        *(f"faults: {each}: nothing was put to the test" for each in report.missed),
        *_numbers(report, expect),
        *_participation(report, expect),
        *_words(report, expect),
        *_models(report, expect, faultless),
    )


def story(report: EmulationReport, device: str, lines: int = LINES) -> str:
    """The last lines of a device's story, indented, each with a line feed before it."""
    told = report.stories.get(device, ())
    left_out = f"\n    ... {len(told) - lines} lines before" if len(told) > lines else ""
    return left_out + "".join(f"\n    {line(each)}" for each in told[-lines:])


def line(told: Told) -> str:
    """One line of a story, for people.

    >>> line(Told(1.5, "report", 2, "5 steps"))
    '    1.5 s  report of round 2: 5 steps'
    """
    number = f" of round {told.round}" if told.round else ""
    detail = f": {told.detail}" if told.detail else ""
    return f"{told.at:7.1f} s  {told.what}{number}{detail}"


def _ending(report: EmulationReport, expect: Expectations) -> Iterator[str]:
    if report.status != expect.status:
        why = f" ({report.why})" if report.why else ""
        waited = f"; it waited last: {report.waits[-1]}" if report.waits else ""
        yield f"status: expected {expect.status}, found {report.status}{why}{waited}"
    if expect.rounds is not None and len(report.seconds) < expect.rounds:
        yield f"rounds: expected at least {expect.rounds} that trained, found {len(report.seconds)}"


def _numbers(report: EmulationReport, expect: Expectations) -> Iterator[str]:
    """Figures that have a greatest value."""
    longest = max(report.seconds.values(), default=0.0)
    for name, most, found in (
        ("lost", expect.lost, report.lost),
        ("abandoned", expect.abandoned, report.abandoned),
        ("bytes_per_round", expect.bytes_per_round, report.bytes_per_round),
        ("seconds_per_round", expect.seconds_per_round, report.seconds_per_round),
        ("longest_round", expect.longest_round, longest),
    ):
        if most is not None and not found <= most:
            yield f"{name}: expected at most {most:g}, found {found:g}{_concerned(report, name)}"
    for name, least in (("mean", expect.mean), ("worst_decile", expect.worst_decile)):
        if least is not None:
            yield from _accuracy(report, name, least)


def _accuracy(report: EmulationReport, name: str, least: float) -> Iterator[str]:
    try:
        found = float(getattr(report, name))
    except KeyError:
        yield f"{name}: expected at least {least:g}, found no device that was evaluated"
        return
    if not found >= least:
        accuracies = report.accuracy.get("personal") or report.accuracy["global"]
        worst = min(accuracies, key=lambda device: (accuracies[device], device))
        told = f"the worst is {worst} with {accuracies[worst]:.3f}{story(report, worst)}"
        yield f"{name}: expected at least {least:g}, found {found:.3f}; {told}"


def _concerned(report: EmulationReport, name: str) -> str:
    """The stories of those whose reports may be lost: they do not end with the coordinator's word."""
    if name != "lost":
        return ""
    waiting = [device for device, told in sorted(report.stories.items()) if _is_unanswered(told)]
    return "".join(f"\n  {device}:{story(report, device)}" for device in waiting[:_SHOWN])


def _is_unanswered(told: tuple[Told, ...]) -> bool:
    last = {each.what: index for index, each in enumerate(told)}
    return "report" in last and last["report"] > last.get(ACCEPTED, -1)


def _participation(report: EmulationReport, expect: Expectations) -> Iterator[str]:
    if expect.reported is not None:
        for number in sorted(report.seconds):
            found = report.reports.get(number, 0)
            if found < expect.reported:
                yield f"reported: expected at least {expect.reported} reports in round {number}, found {found}" + (
                    _missing(report, number)
                )
    # A device may not have heard that its report counts, and of a long story the begin is not kept; of a clone only
    # its story says which reports were its own.
    counted = {device: max(_counted(told), report.counted.get(device, 0)) for device, told in report.stories.items()}
    for pattern, least in sorted(expect.counted.items()):
        concerned = [device for device in sorted(counted) if fnmatchcase(device, pattern)]
        if not concerned:
            yield f"counted: expected reports of {pattern}, found no such device"
        for device in concerned:
            if counted[device] < least:
                yield (
                    f"counted: expected that reports of {device} count in at least {least} rounds, "
                    f"found {counted[device]}{story(report, device)}"
                )
    for pattern in expect.uncounted:
        if not any(fnmatchcase(device, pattern) for device in counted):
            yield f"uncounted: expected that {pattern} takes part, found no such device"
        for device in sorted(counted):
            if fnmatchcase(device, pattern) and counted[device]:
                yield (
                    f"uncounted: expected that no report of {device} counts, found {counted[device]} that do"
                    f"{story(report, device)}"
                )


def _counted(told: tuple[Told, ...]) -> int:
    """Rounds in which a device's report counts."""
    return len({each.round for each in told if each.what == ACCEPTED})


def _missing(report: EmulationReport, number: int) -> str:
    """Whose reports do not count in a round, and their stories."""
    absent = [
        device
        for device, told in sorted(report.stories.items())
        if not any(each.what == ACCEPTED and each.round == number for each in told)
    ]
    return "".join(f"\n  without {device}:{story(report, device)}" for device in absent[:_SHOWN])


def _words(report: EmulationReport, expect: Expectations) -> Iterator[str]:
    said = tuple(spoken(report))
    for text in expect.told:
        wanted = re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)
        if not any(wanted.search(each) for each in said):
            waits = "".join(f"\n    {each}" for each in report.waits[-LINES:])
            yield f"told: expected that somebody says {text!r}, found nobody who does; the run waited:{waits}"
    for reason, least in sorted(expect.refused.items()):
        found = report.refused.get(reason, 0)
        if found < least:
            others = ", ".join(f"{name} {count}" for name, count in sorted(report.refused.items())) or "nothing"
            yield f"refused: expected at least {least} for {reason!r}, found {found} (refused was: {others})"
    for name, expected, found_names in (
        ("doubled", expect.doubled, tuple(sorted(report.doubled))),
        ("quarantined", expect.quarantined, report.quarantined),
    ):
        for pattern in expected:
            if not any(fnmatchcase(device, pattern) for device in found_names):
                found_text = ", ".join(found_names) or "nobody"
                yield f"{name}: expected {pattern}, found {found_text}{story(report, pattern)}"


def spoken(report: EmulationReport) -> Iterator[str]:
    """Everything that anybody said: devices in their stories, the run of its waits, the coordinator of the others."""
    yield report.why
    yield from report.waits
    yield from report.refused
    yield from (f"{device}: {why}" for device, why in report.doubled.items())
    for device, told in report.stories.items():
        yield from (f"{device}: {line(each).strip()}" for each in told)


def _models(report: EmulationReport, expect: Expectations, faultless: EmulationReport | None) -> Iterator[str]:
    if not expect.same_model:
        return
    if faultless is None:
        yield "same_model: expected a run without the faults to compare with, found none"
    elif report.state_sha256 != faultless.state_sha256 or not report.state_sha256:
        yield (
            f"same_model: expected the model of the run without faults ({faultless.state_sha256[:12] or 'none'}), "
            f"found another one ({report.state_sha256[:12] or 'none'})"
        )
