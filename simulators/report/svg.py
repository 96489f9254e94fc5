"""Axes for small charts: scales, ticks and the frame that every chart shares.

All lengths are in the units of the view box; a picture is :data:`WIDE` or :data:`NARROW`, as wide as the page shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulators.report.markup import Markup, tag

WIDE = 920.0
NARROW = 430.0
TEXT_SHIFT = 4.0  # from a text's base line to the middle of its digits


@dataclass(frozen=True)
class Scale:
    """Values on a line of the picture, linear or logarithmic.

    Attributes:
        low: the value at ``start``.
        high: the value at ``end``; above ``low``.
        start: a position.
        end: a position; before ``start`` for an axis that points up.
        log: equal ratios are equal distances.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, at = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (
                self.low,
                self.high,
                value,
            )
        )
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values between ``low`` and ``high``, about so many; powers of ten on a logarithmic scale."""
        if self.log:
            exponents = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**exponent for exponent in exponents]
        step = nice_step((self.high - self.low) / about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def chart(width: float, height: float, label: str, *parts: Markup) -> Markup:
    """A whole picture; ``label`` is what a screen reader says."""
    return tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def text(x: float, y: float, words: str, *, anchor: str = "start", class_: str = "tick") -> Markup:
    """Words whose digits are centred on ``y``."""
    return tag("text", words, x=x, y=y + TEXT_SHIFT, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def across(scale: Scale, top: float, bottom: float, written: Callable[[float], str]) -> list[Markup]:
    """Upright grid lines of a horizontal axis, each with its value below."""
    marks: list[Markup] = []
    for value in scale.ticks():
        marks += [
            line(scale(value), top, scale(value), bottom),
            text(scale(value), bottom + 14, written(value), anchor="middle"),
        ]
    return marks


def upward(scale: Scale, left: float, right: float, written: Callable[[float], str]) -> list[Markup]:
    """Level grid lines of a vertical axis, each with its value on the left."""
    marks: list[Markup] = []
    for value in scale.ticks():
        marks += [
            line(left, scale(value), right, scale(value)),
            text(left - 8, scale(value), written(value), anchor="end"),
        ]
    return marks


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    """A line through points, or a dot where there is only one."""
    if len(points) == 1:
        (x, y) = points[0]
        return tag("circle", cx=x, cy=y, r=3, class_=class_.replace("curve", "dot"))
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)
