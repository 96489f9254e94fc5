"""What ``edgepfl bench zoo`` found, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgepfl.errors import ConfigError
from simulators.bench.agreement import DRAWS, MANY, TOLERANCE
from simulators.bench.bars import Bars, picture
from simulators.bench.record import Record, ZooRow
from simulators.report.charts import bytes_in_words
from simulators.report.table import Row, as_markdown, as_text

HEAD = (
    "model",
    "algorithm",
    "runtime",
    "export s",
    "step",
    "graphs",
    "operators",
    "delegated",
    "error",
    "draws",
    "us",
    "eager us",
)
SIZE, SPEED, PAGE = "zoo-size.svg", "zoo-speed.svg", "zoo.md"

RUNTIMES = ("onnx", "executorch")
"""In the pictures' order."""

_FLOAT = 4  # bytes

_INTRODUCTION = f"""\
# The zoo

Models of `exporters/zoo` under several algorithms on both runtimes. Each was exported, and every graph checked on
its runtime; then three devices trained for three rounds twice, by the exported graphs and by torch eagerly, and all
that either computed was compared: uploads, what stays on the devices, the server's state, losses and the evaluations
after.

![Bytes of the weights and of the graphs, by model]({SIZE})
"""

_TIMES = f"![Time of one training step, by model]({SPEED})"

_COLUMNS = f"""\
| column | meaning |
|:--|:--|
| export s | seconds of processor time to trace, export and check all graphs |
| step | bytes of the step's graph |
| graphs | bytes of all graphs; the weights are not in them |
| operators | of the step's graph |
| delegated | of them, those that XNNPACK runs; the others run on ExecuTorch's own kernels |
| error | the greatest difference from eager torch over the three rounds, relative to the greatest element of the \
tensor or metric that it is in (at least 0.01); at most {TOLERANCE:g}; see below |
| draws | of data that it took: see below |
| us | microseconds of processor time of one step on one thread |
| eager us | the same of plain torch (module, loss, backward, SGD), measured in turns with the runtime |
"""

_ERRORS = f"""\
Where a ReLU or a maximum is about to switch, rounding alone decides the gradient, and torch's own trajectories in
float32 and in float64 part there, by more than {TOLERANCE:g}. So the graphs have to follow either of them to the end.
Where they follow none, everything is done again with other data, {DRAWS} times at most, after {MANY} times with few
examples, on which fewer units are about to switch: a wrong graph is wrong on any.
"""

_AGAIN = """\
Again, in about an hour, or with `--models` and `--algorithms` less:

```
pip install 'edgepfl[export,executorch,sim]'
edgepfl build-runner
edgepfl bench zoo --json zoo.json --docs docs
```

A run that was cut off goes on where it was: rows that `zoo.json` has are not measured again. The exit status is 1 where
an error is too great or an export failed. Times are of the machine that ran it, where other work ran beside: read the
ratios, not the microseconds.
"""


def text(record: Record) -> str:
    """A table for a terminal, and what failed under it."""
    lines = [as_text(HEAD, [_cells(row) for row in record.rows])] if record.rows else []
    return "\n".join([*lines, *(f"FAILED {failure.case}: {failure.reason}" for failure in record.failures)])


def write(record: Record, folder: Path) -> None:
    """Write the page and its pictures into a folder.

    Raises:
        ConfigError: there is nothing to write, or no way to.
    """
    if not record.rows:
        raise ConfigError("no row to write", where=str(folder), remedy="Read why every export failed")
    pages = {PAGE: page(record)}
    pages[SIZE] = picture(size(record))
    if any(row.speed for row in record.rows):
        pages[SPEED] = picture(speed(record))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in pages.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(folder)) from error


def page(record: Record) -> str:
    """The page in Markdown."""
    batches = sorted({row.case.batch for row in record.rows})
    worst = max((row.error for row in record.rows), default=0.0)
    facts = (
        f"{len(record.rows)} exports, minibatches of {', '.join(map(str, batches))}; the greatest error is {worst:.1e}."
    )
    failed = [f"- {failure.case}: {failure.reason}" for failure in record.failures]
    missing = ["## Failed", "\n".join(failed)] if failed else []
    table = as_markdown(HEAD, [_cells(row) for row in record.rows])
    times = [_TIMES] if any(row.speed for row in record.rows) else []
    parts = [
        _INTRODUCTION.strip(),
        *times,
        facts,
        table,
        *missing,
        "## Columns",
        _COLUMNS.strip(),
        _ERRORS.strip(),
        "## Reproduce",
        _AGAIN.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def size(record: Record) -> Bars:
    """Bytes by model, of the first algorithm that has them."""
    groups = {
        model: (_weights(rows), *(_graphs(rows.get(runtime)) for runtime in RUNTIMES))
        for model, rows in _by_model(record, lambda _: True).items()
    }
    return Bars("Bytes of the weights and of all graphs", ("weights", "ONNX", "ExecuTorch"), groups, bytes_in_words)


def speed(record: Record) -> Bars:
    """Step times by model."""
    groups = {
        model: (_eager(rows), *(_us(rows.get(runtime)) for runtime in RUNTIMES))
        for model, rows in _by_model(record, lambda row: row.speed is not None).items()
    }
    title = "Time of one training step on one thread"
    return Bars(title, ("torch eager", "onnxruntime", "ExecuTorch"), groups, time_in_words)


def time_in_words(us: float) -> str:
    """Microseconds with a fitting unit."""
    if us < 1000:  # noqa: PLR2004  the step of the units
        return f"{us:.3g} us"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"  # noqa: PLR2004  likewise


def _by_model(record: Record, wanted: Callable[[ZooRow], bool]) -> dict[str, dict[str, ZooRow]]:
    """Model to runtime to row, all of the first algorithm that the model has such a row of."""
    found: dict[str, dict[str, ZooRow]] = {}
    for row in filter(wanted, record.rows):
        rows = found.setdefault(row.case.model, {})
        if all(other.case.algorithm == row.case.algorithm for other in rows.values()):
            rows[row.case.runtime] = row
    return found


def _weights(rows: dict[str, ZooRow]) -> float:
    return float(_FLOAT * next(iter(rows.values())).parameters)


def _graphs(row: ZooRow | None) -> float | None:
    return None if row is None else float(row.graph_bytes)


def _us(row: ZooRow | None) -> float | None:
    return None if row is None or row.speed is None else row.speed.us


def _eager(rows: dict[str, ZooRow]) -> float:
    """The lowest of the times that plain torch took beside the runtimes."""
    return min(row.speed.eager_us for row in rows.values() if row.speed is not None)


def _error(row: ZooRow) -> str:
    return f"{row.error:.1e}" if row.right else f"{row.error:.1e} WRONG"


def _cells(row: ZooRow) -> Row:
    speed = row.speed
    return (
        row.case.model,
        row.case.algorithm,
        row.case.runtime,
        f"{row.export_seconds:.0f}",
        bytes_in_words(row.step_bytes),
        bytes_in_words(row.graph_bytes),
        f"{row.nodes:,}",
        "" if row.delegated is None else f"{row.delegated:,}",
        _error(row),
        f"{row.draws}",
        "" if speed is None else f"{speed.us:,.0f}",
        "" if speed is None else f"{speed.eager_us:,.0f}",
    )
