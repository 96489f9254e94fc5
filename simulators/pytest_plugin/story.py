"""What is printed under a failure: how the run went, and the stories of the devices that stand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from simulators.emulation.expectations import line
from simulators.emulation.report import EmulationReport, Told

MOST_DEVICES = 4
MOST_LINES = 30
LAST_WAITS = 3
RARE = 0.5  # of the devices: what happens to fewer is worth telling


def account(report: EmulationReport, asked: Sequence[str] = (), kept: str = "", replay: str = "") -> str:
    """The end of a failing test.

    Args:
        report: of its fleet.
        asked: devices that the test looked at; their stories come first.
        kept: where the whole report is.
        replay: how to have the same again.
    """
    shown = striking(report, asked)
    parts = [
        _summary(report),
        *(f"waited for: {text}" for text in report.waits[-LAST_WAITS:]),
        *(f"two agents have the name {device}: {text}" for device, text in report.doubled.items()),
        *(story(device, report.stories.get(device, ())) for device in shown),
        _left_out(len(report.stories) - len(shown)),
        f"the whole report: {kept}" if kept else "",
        f"seed {report.seed}{f': {replay}' if replay else ''}",
    ]
    return "\n".join(filter(None, parts))


def story(device: str, told: Sequence[Told]) -> str:
    """A device's story, a line for each thing that happened to it; of a long one the end."""
    left = len(told) - MOST_LINES
    lines = [f"... {left} lines before"] if left > 0 else []
    lines += [line(each) for each in told[-MOST_LINES:]]
    return "\n".join([f"the story of {device}:", *(f"  {each}" for each in lines or ["nothing happened to it"])])


def striking(report: EmulationReport, asked: Iterable[str] = ()) -> tuple[str, ...]:
    """The devices whose stories help most: those asked for, then those to whom rare things happened, and the worst one.

    What is rare follows from the stories themselves: what fewer than half of the devices went through.
    """
    first = [device for device in dict.fromkeys(asked) if device in report.stories]
    common = _common(report.stories)

    def rare(device: str) -> int:
        strange = sum(each.what not in common for each in report.stories[device])
        return strange + (device in report.quarantined) + (device in report.doubled)

    struck = sorted((device for device in report.stories if rare(device)), key=lambda each: (-rare(each), each))
    worst = sorted(report.stories, key=lambda device: (_accuracy(report, device), device))[:1]
    wanted = dict.fromkeys([*first, *struck[:MOST_DEVICES], *worst])
    return tuple(wanted)[: max(MOST_DEVICES, len(first))]


def _common(stories: Mapping[str, Sequence[Told]]) -> frozenset[str]:
    seen = Counter(what for told in stories.values() for what in {each.what for each in told})
    return frozenset(what for what, devices in seen.items() if devices >= RARE * len(stories))


def _accuracy(report: EmulationReport, device: str) -> float:
    for model in ("personal", "global"):
        if device in report.accuracy.get(model, {}):
            return report.accuracy[model][device]
    return 1.0


def _summary(report: EmulationReport) -> str:
    why = f" ({report.why})" if report.why else ""
    return (
        f"run {report.run or '(not started)'}: {report.status or 'not begun'}{why}, "
        f"{len(report.seconds)} rounds trained, {report.agents} agents, {report.algorithm}, "
        f"{report.lost} reports lost, {report.abandoned} attempts abandoned, "
        f"{report.seconds_per_round:.2f} s and {report.bytes_per_round:.0f} bytes a round"
        + (f", refused: {report.refused}" if report.refused else "")
    )


def _left_out(devices: int) -> str:
    return f"({devices} more devices have stories)" if devices > 0 else ""
