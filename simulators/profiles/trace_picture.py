"""The picture of a fleet's traces: who is there at which hour, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Sequence

from simulators.profiles.trace_statistics import HOURS, TraceStatistics
from simulators.report import svg
from simulators.report.markup import Markup, tag

_COLOURS = {"online": "#98a2b3", "idle": "#2a9d8f", "wifi": "#8e6bbf", "charging": "#2f8fd4", "ready": "#e0702f"}
_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1d2330; }
.tick { fill: #667085; } .grid { stroke: #98a2b3; stroke-width: 1; opacity: .4; }
.heading { font-size: 14px; font-weight: 600; }
polyline { fill: none; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) { text { fill: #e7eaf0; } .tick { fill: #98a2b3; } }
"""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760.0, 300.0, 56.0, 96.0, 40.0, 40.0
_NEAREST = 15.0  # between two labels


def picture(found: TraceStatistics, title: str) -> str:
    """An SVG document: a step curve over the hours of the day for each measure, each named at its end."""
    x = svg.Scale(0.0, float(HOURS), _LEFT, _WIDTH - _RIGHT)
    y = svg.Scale(0.0, 1.0, _HEIGHT - _BOTTOM, _TOP)
    parts: list[Markup] = [tag("style", Markup(_STYLE)), svg.text(16, 20, title, class_="heading")]
    parts += svg.upward(y, x.start, x.end, lambda value: f"{100 * value:.0f} %")
    for hour in range(0, HOURS + 1, 3):
        parts.append(svg.text(x(hour), y.start + 16, f"{hour:02}:00", anchor="middle", class_="tick"))
    labels = _apart({name: y(shares[-1]) for name, shares in found.by_hour.items()})
    for name, shares in found.by_hour.items():
        parts.append(_steps(name, shares, x, y))
        parts.append(svg.text(x.end + 8, labels[name], name))
    drawn = tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=title,
    )
    return f"{drawn}\n"


def _steps(name: str, shares: Sequence[float], x: svg.Scale, y: svg.Scale) -> Markup:
    points = [(x(hour + side), y(share)) for hour, share in enumerate(shares) for side in (0, 1)]
    line = " ".join(f"{right:.1f},{down:.1f}" for right, down in points)
    told = tag("title", f"{name}: {', '.join(f'{100 * share:.0f}' for share in shares)} % by hour")
    return tag("polyline", told, points=line, stroke=_COLOURS[name], stroke_width=3.0 if name == "ready" else 1.5)


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Positions of labels, each moved down as far as it must to leave the one above it legible."""
    placed: dict[str, float] = {}
    last = -_NEAREST
    for name, position in sorted(wanted.items(), key=lambda item: item[1]):
        last = max(position, last + _NEAREST)
        placed[name] = last
    return placed
