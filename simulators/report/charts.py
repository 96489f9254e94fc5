"""The report's pictures, as inline SVG; colours and fonts are the page's (see :mod:`simulators.report.style`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from simulators.report import svg
from simulators.report.markup import Markup, tag
from simulators.report.result import MODELS, DemoResult, Point, Traffic

LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 10.0, 26.0  # margins
ROW = 21.0  # of one device or phase
CURVE_HEIGHT = 210.0

TRAFFIC_NAMES = {
    "coordinator_in": "coordinator, in",
    "coordinator_out": "coordinator, out",
    "device_down": "one device, down",
    "device_up": "one device, up",
}

Series = tuple[str, Sequence[tuple[float, float]]]
"""A CSS class, and (x, y) in the values' own units."""


def accuracy_by_device(result: DemoResult) -> Markup:
    """One row for each device, one dot in it for each model; the devices from best to worst."""
    last = result.models[-1]
    ranked = sorted(result.devices, key=lambda device: (-result.accuracy[last].get(device, 0.0), device))
    left = 16 + 7 * max(len(device) for device in ranked)
    bottom = TOP + ROW * len(ranked)
    lowest = min(min(result.accuracy[model].values()) for model in result.models)
    x = svg.Scale(_below(lowest), 1.0, left, svg.WIDE - RIGHT - 6)
    parts = svg.across(x, TOP, bottom, _percent)
    for row, device in enumerate(ranked):
        parts += _device_row(result, device, x, TOP + ROW * (row + 0.5))
    return svg.chart(svg.WIDE, bottom + BOTTOM, "Test accuracy of every device, by model", *parts)


def _device_row(result: DemoResult, device: str, x: svg.Scale, y: float) -> list[Markup]:
    found = {model: result.accuracy[model][device] for model in result.models if device in result.accuracy[model]}
    parts = [
        svg.text(x.start - 10, y, device, anchor="end", class_="name"),
        svg.line(x(min(found.values())), y, x(max(found.values())), y, "reach"),
    ]
    for model, value in found.items():
        title = tag("title", f"{device}, {MODELS[model]}: {100 * value:.1f} %")
        parts.append(tag("circle", title, cx=x(value), cy=y, r=5, class_=f"dot {model}"))
    return parts


def learning_curves(curve: Sequence[Point]) -> Markup | None:
    """Mean accuracy by round, of the global and of the personal models; None without any."""
    named: dict[str, list[tuple[float, float]]] = {
        "curve global": [(p.round, p.global_accuracy) for p in curve if p.global_accuracy is not None],
        "curve personal": [(p.round, p.personal_accuracy) for p in curve if p.personal_accuracy is not None],
    }
    series = [(name, points) for name, points in named.items() if points]
    if not series:
        return None
    low = _below(min(y for _, points in series for _, y in points))
    return _curves(series, (low, 1.0), _percent, "Mean test accuracy by round")


def loss_curve(curve: Sequence[Point]) -> Markup | None:
    """Mean training loss by round; None without any."""
    points = [(float(p.round), p.train_loss) for p in curve if p.train_loss is not None]
    if not points:
        return None
    high = max(y for _, y in points) * 1.05 or 1.0
    return _curves([("curve loss", points)], (0.0, high), lambda value: f"{value:g}", "Mean training loss by round")


def bytes_by_round(traffic: Sequence[Traffic]) -> Markup | None:
    """Bytes of each round on a logarithmic scale: coordinator and device differ by the size of the fleet."""
    rows = [asdict(each) for each in traffic]
    series: list[Series] = []
    for name in TRAFFIC_NAMES:
        points = [(float(number), row[name]) for number, row in enumerate(rows, start=1) if row[name] > 0]
        if points:
            series.append((f"curve {name.replace('_', '-')}", points))
    if not series:
        return None
    values = [y for _, points in series for _, y in points]
    borders = (10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values) * 1.01)))
    return _curves(series, borders, bytes_in_words, "Bytes by round", log=True)


def seconds_by_phase(seconds: Mapping[str, float]) -> Markup | None:
    """One bar for each phase, in the order given; None without any time."""
    longest = max(seconds.values(), default=0.0)
    if longest <= 0:
        return None
    left = 16 + 7 * max(map(len, seconds))
    x = svg.Scale(0.0, longest, left, svg.NARROW - RIGHT - 56)
    parts: list[Markup] = []
    for row, (phase, value) in enumerate(seconds.items()):
        y = TOP + (ROW + 4) * (row + 0.5)
        parts += [
            svg.text(left - 10, y, phase, anchor="end", class_="name"),
            tag("rect", x=left, y=y - 7, width=x(value) - left, height=14, rx=3, class_="bar"),
            svg.text(x(value) + 6, y, f"{value:.1f} s", class_="name"),
        ]
    return svg.chart(svg.NARROW, TOP * 2 + (ROW + 4) * len(seconds), "Seconds by phase", *parts)


def bytes_in_words(count: float) -> str:
    """``1.5 MB``; powers of 1000, as networks count."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:  # noqa: PLR2004 - the step of the units, as the docstring says
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _curves(
    series: Sequence[Series],
    borders: tuple[float, float],
    written: Callable[[float], str],
    label: str,
    *,
    log: bool = False,
) -> Markup:
    bottom = CURVE_HEIGHT - BOTTOM
    rounds = [x for _, points in series for x, _ in points]
    x = svg.Scale(min(rounds), max(*rounds, min(rounds) + 1), LEFT, svg.NARROW - RIGHT)
    y = svg.Scale(*borders, start=bottom, end=TOP, log=log)
    parts = svg.upward(y, LEFT, svg.NARROW - RIGHT, written)
    parts += [
        svg.text(x(tick), bottom + 14, f"{tick:g}", anchor="middle") for tick in x.ticks(8) if float(tick).is_integer()
    ]
    parts += [svg.polyline([(x(at), y(value)) for at, value in points], name) for name, points in series]
    return svg.chart(svg.NARROW, CURVE_HEIGHT, label, *parts)


def _below(accuracy: float) -> float:
    """The lower end of an axis that shows this accuracy: a multiple of 0.1, at most 0.9."""
    return min(max(math.floor(accuracy * 10 - 0.2) / 10, 0.0), 0.9)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
