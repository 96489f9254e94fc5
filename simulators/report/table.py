"""Tables for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from simulators.report.result import MODELS, DemoResult
from simulators.report.summary import Summary, summary

COLUMNS = ("mean", "worst decile", "best")
PLUS_MINUS = "\u00b1"

Row = tuple[str, ...]


def table(result: DemoResult) -> str:
    """The demo's accuracies over its devices, one model a line, in plain text."""
    rows = [(MODELS[model], *map(_figure, _numbers(result, model))) for model in result.models]
    return as_text((f"accuracy over {len(result.devices)} devices", *COLUMNS), rows)


def comparison_text(methods: Mapping[str, Sequence[Summary]]) -> str:
    """One method a line: mean over the seeds, and their standard deviation where there are several.

    Args:
        methods: each method's summaries, one for each seed.
    """
    return as_text(*_comparison(methods))


def comparison_markdown(methods: Mapping[str, Sequence[Summary]]) -> str:
    """Likewise, as a Markdown table."""
    return as_markdown(*_comparison(methods))


def as_text(head: Row, rows: Sequence[Row]) -> str:
    """Columns padded to their widest cell; the first leans left, the others right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [_padded(line, widths) for line in lines]
    return "\n".join([padded[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *padded[1:]])


def as_markdown(head: Row, rows: Sequence[Row]) -> str:
    """A Markdown table with the same alignment."""
    rule = (":--", *("--:" for _ in head[1:]))
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in (head, rule, *rows))


def _padded(line: Row, widths: Sequence[int]) -> str:
    first, *others = zip(line, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def _comparison(methods: Mapping[str, Sequence[Summary]]) -> tuple[Row, list[Row]]:
    before = any(each.before is not None for seeds in methods.values() for each in seeds)
    rows: list[Row] = []
    for method, seeds in methods.items():
        columns = zip(*(each.figures for each in seeds), strict=True)
        first = (_before(seeds),) if before else ()
        rows.append((method, *first, *map(_spread, columns)))
    return ("method", *(("round 0",) if before else ()), *COLUMNS), rows


def _before(seeds: Sequence[Summary]) -> str:
    known = [each.before for each in seeds if each.before is not None]
    return _spread(known) if known else ""


def _numbers(result: DemoResult, model: str) -> tuple[float, ...]:
    return summary(result.accuracy[model].values()).figures


def _figure(value: float) -> str:
    return f"{value:.3f}"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _figure(values[0])
    return f"{_figure(fmean(values))} {PLUS_MINUS} {_figure(stdev(values))}"
