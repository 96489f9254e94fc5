"""An emulation's report as one HTML page with pictures, for looking at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simulators.emulation.expectations import line
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.words import table
from simulators.report import svg
from simulators.report.charts import bytes_in_words
from simulators.report.markup import Markup, tag
from simulators.report.style import STYLE

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 240.0, 64.0, 16.0, 16.0, 34.0
STORIES = 40
"""Devices whose stories are shown: those first to whom something happened that is not of every day."""
WAITS = 60
USUAL = frozenset({"connected", "task", "report", "accepted"})
OWN_STYLE = "pre { overflow-x: auto; font-size: .8rem; } .curve { fill: none; stroke-width: 2; stroke: var(--global); }"

Points = Sequence[tuple[float, float]]


def write_html(report: EmulationReport, path: Path) -> None:
    """Write the page; an old one is replaced as a whole.

    Raises:
        OSError: it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(page(report), encoding="utf-8")
    fresh.replace(path)


def page(report: EmulationReport) -> str:
    """The whole document."""
    title = f"edgepfl: {report.scenario}"
    head = tag("head", Markup('<meta charset="utf-8">'), tag("title", title), tag("style", Markup(STYLE + OWN_STYLE)))
    sections = [
        _section("What came of it", tag("pre", table(report))),
        *_rounds(report),
        *_accuracies(report),
        *_waits(report),
        *_stories(report),
    ]
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('h1', title), *sections), lang='en')}\n"


def _rounds(report: EmulationReport) -> list[Markup]:
    sent = {number: report.bytes_in.get(number, 0) + report.bytes_out.get(number, 0) for number in report.reports}
    found: list[tuple[str, Mapping[int, float], Callable[[float], str]]] = [
        ("Seconds of each round", report.seconds, lambda value: f"{value:g} s"),
        ("Bytes of each round, coordinator", sent, bytes_in_words),
        ("Reports of each round", report.reports, lambda value: f"{value:g}"),
    ]
    return [_section(title, curve(_points(values), title, written)) for title, values, written in found if values]


def _points(values: Mapping[int, float]) -> Points:
    return [(float(number), float(value)) for number, value in sorted(values.items())]


def _accuracies(report: EmulationReport) -> list[Markup]:
    """Each model's accuracies over the devices, from the worst device to the best."""
    sections = []
    for model, found in report.accuracy.items():
        title = f"Test accuracy of the {model} model, from the worst device to the best"
        points = [(float(place), value) for place, value in enumerate(sorted(found.values()), 1)]
        sections.append(_section(title, curve(points, title, lambda value: f"{100 * value:.0f} %", highest=1.0)))
    return sections


def curve(points: Points, label: str, written: Callable[[float], str], *, highest: float = 0.0) -> Markup:
    """One line over whole numbers, from 0 upwards.

    Args:
        points: at least one.
        label: for whoever cannot see it.
        written: a value for people.
        highest: end of the axis; 0: a little above the greatest value.
    """
    bottom = HEIGHT - BOTTOM
    numbers = [x for x, _ in points]
    x = svg.Scale(min(numbers), max(*numbers, min(numbers) + 1), LEFT, svg.WIDE - RIGHT)
    y = svg.Scale(0.0, highest or 1.05 * max(value for _, value in points) or 1.0, start=bottom, end=TOP)
    parts = svg.upward(y, LEFT, svg.WIDE - RIGHT, written)
    whole = [tick for tick in x.ticks(8) if float(tick).is_integer()]
    parts += [svg.text(x(tick), bottom + 14, f"{tick:g}", anchor="middle") for tick in whole]
    placed = [(x(at), y(value)) for at, value in points]
    parts += (
        [svg.polyline(placed, "curve")] if len(placed) > 1 else [tag("circle", cx=placed[0][0], cy=placed[0][1], r=4)]
    )
    return svg.chart(svg.WIDE, HEIGHT, label, *parts)


def _waits(report: EmulationReport) -> list[Markup]:
    if not report.waits:
        return []
    shown = "\n".join(report.waits[-WAITS:])
    return [_section("What the run waited for", tag("p", f"The last {WAITS} texts.", class_="note"), tag("pre", shown))]


def _stories(report: EmulationReport) -> list[Markup]:
    """The most eventful devices' stories."""

    def eventful(item: tuple[str, tuple[Told, ...]]) -> tuple[int, str]:
        return -sum(told.what not in USUAL for told in item[1]), item[0]

    chosen = sorted(report.stories.items(), key=eventful)[:STORIES]
    told = [tag("details", tag("summary", device), tag("pre", "\n".join(map(line, lines)))) for device, lines in chosen]
    note = f"{len(chosen)} of {len(report.stories)} devices, those first to whom most happened."
    return [_section("Stories", tag("p", note, class_="note"), *told)] if told else []


def _section(title: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", title), *parts)
