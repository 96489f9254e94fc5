"""Pictures of a fleet's data: who has what, how much, and how it changes; they stand alone, on light and dark paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulators.datasets.drift import Drift
from simulators.datasets.statistics import Share, Statistics
from simulators.report import svg
from simulators.report.markup import Markup, tag

MOST_BARS = 80
"""Devices that a picture shows; of more it shows so many, evenly spaced by size."""

_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2330; }
.tick { fill: #667085; } .grid { stroke: #98a2b3; stroke-width: 1; opacity: .4; }
.heading { font-size: 14px; font-weight: 600; }
polyline { fill: none; stroke: #2f8fd4; stroke-width: 2; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) { text { fill: #e7eaf0; } .tick { fill: #98a2b3; } }
"""
_WIDTH, _LEFT, _RIGHT, _TOP = 760.0, 64.0, 20.0, 34.0
_HIGH, _BELOW = 190.0, 30.0
_LETTER, _LINE = 7.2, 18.0
_BINS = 24


def picture(found: Statistics, drift: Drift | None = None) -> str:
    """Everything in one SVG document: classes by device, sizes, and the drift where there is one."""
    panels: list[tuple[list[Markup], float]] = [_classes(found), _sizes(found)]
    if drift is not None:
        panels.append(_drift(drift))
    parts: list[Markup] = [tag("style", Markup(_STYLE))]
    top = 0.0
    for drawn, height in panels:
        parts.append(tag("g", *drawn, transform=f"translate(0 {top:g})"))
        top += height
    title = f"{found.name}: {len(found.devices)} devices, {found.examples:,} examples"
    drawn_all = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {top:g}",
        role="img",
        aria_label=title,
    )
    return f"{drawn_all}\n"


def shown(devices: Sequence[Share]) -> list[Share]:
    """The devices of a picture, the one with most examples first."""
    ranked = sorted(devices, key=lambda share: (-share.examples, share.device))
    if len(ranked) <= MOST_BARS:
        return ranked
    return [ranked[place] for place in np.linspace(0, len(ranked) - 1, MOST_BARS).round().astype(int).tolist()]


def colour(number: int, count: int) -> str:
    """Of a class: hues all around, every second one darker, so that neighbours differ."""
    return f"hsl({360 * number / count:.0f} 62% {45 if number % 2 else 60}%)"


def _classes(found: Statistics) -> tuple[list[Markup], float]:
    """One bar for each device, stacked from its examples of each class."""
    devices = shown(found.devices)
    note = "" if len(devices) == len(found.devices) else f", {len(devices)} of {len(found.devices)} shown"
    legend, lines = _legend(found.classes)
    top = _TOP + lines * _LINE
    bottom = top + _HIGH
    y = svg.Scale(0.0, max(share.examples for share in devices) * 1.04, start=bottom, end=top)
    parts = [svg.text(16, 18, f"Examples of each class, by device{note}", class_="heading"), *legend]
    parts += svg.upward(y, _LEFT, _WIDTH - _RIGHT, lambda value: f"{value:,.0f}")
    step = (_WIDTH - _RIGHT - _LEFT) / len(devices)
    for place, share in enumerate(devices):
        parts += _bar(share, found.classes, y, _LEFT + step * place, step)
    parts.append(svg.text(_LEFT, bottom + 16, "devices, the one with most examples first", class_="tick"))
    return parts, bottom + _BELOW


def _bar(share: Share, classes: Sequence[str], y: svg.Scale, left: float, step: float) -> list[Markup]:
    parts, below = [], 0
    for number, count in enumerate(share.counts):
        if not count:
            continue
        high, low = y(below + count), y(below)
        title = tag("title", f"{share.device}, {classes[number]}: {count}")
        fill = colour(number, len(classes))
        gap = min(2.0, step / 5)
        parts.append(tag("rect", title, x=left, y=high, width=step - gap, height=low - high, fill=fill))
        below += count
    return parts


def _legend(classes: Sequence[str]) -> tuple[list[Markup], int]:
    """The classes' colours, and how many lines they take."""
    parts: list[Markup] = []
    at, line = 16.0, 0
    for number, name in enumerate(classes):
        width = 26 + _LETTER * len(name)
        if at + width > _WIDTH - _RIGHT:
            at, line = 16.0, line + 1
        y = _TOP + line * _LINE
        parts += [tag("rect", x=at, y=y - 6, width=10, height=10, rx=2, fill=colour(number, len(classes)))]
        parts += [svg.text(at + 14, y, name)]
        at += width
    return parts, line + 1


def _sizes(found: Statistics) -> tuple[list[Markup], float]:
    """How many devices have how many examples."""
    values = np.array([share.examples for share in found.devices])
    low, high = int(values.min()), int(values.max())
    edges = np.linspace(low, max(high, low + 1), min(_BINS, max(high - low, 1)) + 1)
    counts, _ = np.histogram(values, edges)
    top, bottom = _TOP, _TOP + _HIGH * 0.6
    x = svg.Scale(float(edges[0]), float(edges[-1]), _LEFT, _WIDTH - _RIGHT)
    y = svg.Scale(0.0, float(max(counts.max(), 1)) * 1.05, start=bottom, end=top)
    parts = [svg.text(16, 18, "Devices by how many examples they have", class_="heading")]
    parts += svg.upward(y, _LEFT, x.end, lambda value: f"{value:,.0f}" if value == math.floor(value) else "")
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        title = tag("title", f"{count} devices with {left:.0f} to {right:.0f} examples")
        place = {"x": x(left), "y": y(count), "width": max(x(right) - x(left) - 1, 0.5), "height": bottom - y(count)}
        parts.append(tag("rect", title, fill="#2f8fd4", **place))
    ticks = [tick for tick in x.ticks(8) if tick == math.floor(tick)]
    parts += [svg.text(x(tick), bottom + 14, f"{tick:,.0f}", anchor="middle") for tick in ticks]
    return parts, bottom + _BELOW


def _drift(drift: Drift) -> tuple[list[Markup], float]:
    """The part of a drifting device's examples that is of the new concept, by round."""
    last = drift.start + 4 * drift.length
    top, bottom = _TOP, _TOP + _HIGH * 0.45
    x = svg.Scale(0.0, float(last), _LEFT, _WIDTH - _RIGHT)
    y = svg.Scale(0.0, 1.05, start=bottom, end=top)
    points = [(x(at), y(drift.level(round_))) for round_ in range(last) for at in (round_, round_ + 1)]
    title = f"Drift of {drift.what}: part of the new concept by round, on {100 * drift.share:.0f} % of the devices"
    parts = [svg.text(16, 18, title, class_="heading")]
    parts += svg.upward(y, _LEFT, x.end, lambda value: f"{100 * value:.0f} %")
    parts.append(svg.polyline(points, "drift"))
    ticks = [tick for tick in x.ticks(8) if tick == math.floor(tick)]
    parts += [svg.text(x(tick), bottom + 14, f"{tick:.0f}", anchor="middle") for tick in ticks]
    return parts, bottom + _BELOW
