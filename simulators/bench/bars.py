"""Bars on a logarithmic scale, one group for each model: a picture that stands alone, on light and on dark paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from simulators.report import svg
from simulators.report.markup import Markup, tag

_COLOURS = ("#8a94a6", "#2f8fd4", "#e0702f")
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2330; }
.tick { fill: #667085; } .grid { stroke: #98a2b3; stroke-width: 1; opacity: .4; }
.heading { font-size: 14px; font-weight: 600; }
@media (prefers-color-scheme: dark) { text { fill: #e7eaf0; } .tick { fill: #98a2b3; } }
"""
_WIDTH, _BAR, _GAP = 760.0, 13.0, 12.0
_TOP, _BOTTOM, _RIGHT, _LETTER = 62.0, 30.0, 78.0, 7.2


@dataclass(frozen=True)
class Bars:
    """A picture's content.

    Attributes:
        title: above it.
        series: what the bars of a group are, at most three.
        groups: group to one value for each series, above zero; None where there is none.
        written: a value in words.
    """

    title: str
    series: Sequence[str]
    groups: Mapping[str, Sequence[float | None]]
    written: Callable[[float], str]


def picture(bars: Bars) -> str:
    """The picture as an SVG document; a single group is enough."""
    values = [value for group in bars.groups.values() for value in group if value is not None]
    left = 16 + _LETTER * max(map(len, bars.groups))
    height = _BAR * len(bars.series) + _GAP
    bottom = _TOP + height * len(bars.groups)
    x = svg.Scale(
        _power(min(values) / 1.3, math.floor), _power(max(values), math.ceil), left, _WIDTH - _RIGHT, log=True
    )
    parts = [tag("style", Markup(_STYLE)), svg.text(16, 20, bars.title, class_="heading"), *_legend(bars.series)]
    parts += svg.across(x, _TOP - 4, bottom, bars.written)
    for row, (name, group) in enumerate(bars.groups.items()):
        parts += _group(bars, x, _TOP + height * row, name, group)
    drawn = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {bottom + _BOTTOM:g}",
        role="img",
        aria_label=bars.title,
    )
    return f"{drawn}\n"


def _power(value: float, rounded: Callable[[float], int]) -> float:
    """The power of ten beside a value."""
    return 10.0 ** rounded(math.log10(value))


def _legend(series: Sequence[str]) -> list[Markup]:
    parts: list[Markup] = []
    at = 16.0
    for name, colour in zip(series, _COLOURS, strict=False):
        parts += [tag("rect", x=at, y=35, width=10, height=10, rx=2, fill=colour), svg.text(at + 15, 40, name)]
        at += 40 + _LETTER * len(name)
    return parts


def _group(bars: Bars, x: svg.Scale, top: float, name: str, group: Sequence[float | None]) -> list[Markup]:
    parts = [svg.text(x.start - 10, top + _BAR * len(group) / 2, name, anchor="end")]
    for number, (value, colour) in enumerate(zip(group, _COLOURS, strict=False)):
        if value is None:
            continue
        y = top + _BAR * number
        title = tag("title", f"{name}, {bars.series[number]}: {bars.written(value)}")
        width = x(value) - x.start
        parts += [
            tag("rect", title, x=x.start, y=y + 1, width=width, height=_BAR - 2, rx=2, fill=colour),
            svg.text(x(value) + 6, y + _BAR / 2, bars.written(value), class_="tick"),
        ]
    return parts
