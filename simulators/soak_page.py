"""The picture of a soak: each process's memory over time, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Sequence

from simulators.report import svg
from simulators.report.markup import Markup, tag
from simulators.soak_measures import Memory, Sample

_COLOURS = {"coordinator": "#2f8fd4", "fleet": "#e0702f", "broker": "#2a9d8f"}
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2330; }
.tick { fill: #667085; } .grid { stroke: #98a2b3; stroke-width: 1; opacity: .4; }
.heading { font-size: 14px; font-weight: 600; }
polyline { fill: none; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) { text { fill: #e7eaf0; } .tick { fill: #98a2b3; } }
"""
_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP = 760.0, 130.0, 70.0, 20.0, 44.0


def picture(memory: Memory, title: str) -> str:
    """An SVG document with a panel for each process: resident (full line) and proportional (thin) set size."""
    last = max((each.at for samples in memory.values() for each in samples), default=60.0)
    x = svg.Scale(0.0, max(last, 60.0) / 60, _LEFT, _WIDTH - _RIGHT)
    parts: list[Markup] = [tag("style", Markup(_STYLE)), svg.text(16, 20, title, class_="heading")]
    top = _TOP
    for name, samples in memory.items():
        parts += _panel(name, samples, x, top)
        top += _PANEL
    parts += [svg.text(x(tick), top + 4, f"{tick:g} min", anchor="middle", class_="tick") for tick in x.ticks(8)]
    drawn = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {top + 20:g}",
        role="img",
        aria_label=title,
    )
    return f"{drawn}\n"


def _panel(name: str, samples: Sequence[Sample], x: svg.Scale, top: float) -> list[Markup]:
    bottom = top + _PANEL - 40
    y = svg.Scale(0.0, max((each.rss for each in samples), default=1.0) * 1.1, start=bottom, end=top)
    parts = [svg.text(16, top - 8, f"{name}, MB"), *svg.upward(y, _LEFT, x.end, lambda value: f"{value:g}")]
    for width, value in ((2.0, "rss"), (0.8, "pss")):
        points = [(x(each.at / 60), y(getattr(each, value))) for each in samples]
        line = " ".join(f"{right:.1f},{down:.1f}" for right, down in points)
        parts.append(tag("polyline", points=line, stroke=_COLOURS.get(name, "#8a94a6"), stroke_width=width))
    return parts
