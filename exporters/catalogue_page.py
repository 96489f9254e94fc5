"""The catalogue of algorithms and presets for a terminal and for the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from edgepfl.errors import ConfigError
from edgepfl.presets import Preset
from exporters.catalogue import SIZES, Description, Row, SlotRow

HEAD = ("algorithm", "down", "up", "kept", "server", "sent", "devices", "paper", "evaluated")
BLOCKS = ("algorithms", "presets")
"""The generated parts of the documentation's page."""

_LEGEND = """\
Numbers (of 4 bytes) for one device and round, but server: its state between rounds.  d: all parameters, d_f the shared
and d_h the personal ones; classes of the model, width of its representation; m devices in the fleet."""
_WIDTH = 100


def table(rows: Sequence[Row]) -> str:
    """A line for each algorithm, for a terminal."""
    cells = [(*_cells(row)[:-2], _authors(row), row.evaluated) for row in rows]
    return f"{_columns([HEAD, *cells])}\n\n{_LEGEND}"


def page(description: Description, changed: Mapping[str, str], presets: Iterable[str]) -> str:
    """All about one algorithm, for a terminal.

    Args:
        description: the algorithm.
        changed: sizes that are not those of its defaults.
        presets: names of its presets.
    """
    row = description.row
    sizes = "   ".join(f"{field} {getattr(row, field)}" for field in SIZES)
    facts = [f"{sizes}   ({row.sent})", *([f"other than by default: {_list(changed)}"] if changed else [])]
    facts += [f"evaluated: {row.evaluated}", f"devices of a round: {row.participation}"]
    if description.personal:
        facts.append(f"personal, where the export names none: {', '.join(description.personal)}")
    facts += [f"weighting={name} is refused: {reason}" for name, reason in description.refused.items()]
    parts = {
        row.name: _filled(description.source),
        "": description.text,
        "SIZES": "\n".join(map(_filled, facts)),
        "SLOTS of a device": _slots(description.slots),
        "STATE of the server": _slots(description.state),
        "HYPERPARAMETERS": _hyperparameters(description),
        "OPTIONS that change sizes": "\n".join(
            f"{option}: {_list(sizes)}" for option, sizes in description.options.items()
        ),
        "PRESETS": "\n".join(presets),
    }
    return "\n\n".join(_part(title, text) for title, text in parts.items() if text) + f"\n\n{_LEGEND}"


def preset_list(presets: Mapping[str, Preset]) -> str:
    """Presets with their sources, for a terminal."""
    return "\n\n".join(_part(name, "\n".join(map(_filled, _facts(preset)))) for name, preset in presets.items())


def as_markdown(rows: Sequence[Row]) -> str:
    """A line for each algorithm, as a Markdown table."""
    count = 1 + len(SIZES)
    lines = [(*(f"`{cell}`" for cell in cells[:count]), *cells[count:]) for cells in map(_cells, rows)]
    return _markdown(HEAD, lines)


def presets_as_markdown(presets: Mapping[str, Preset]) -> str:
    """A line for each preset, as a Markdown table."""
    head = ("preset", "data", "hyperparameters", "work", "source")
    return _markdown(head, [(f"`{name}`", *_preset_cells(preset)) for name, preset in presets.items()])


def renew(path: Path, blocks: Mapping[str, str]) -> None:
    """Put generated parts in their places in a page: between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    Raises:
        ConfigError: the page cannot be read or written, or has no such place.
    """
    try:
        text = path.read_text("utf-8")
        for name, block in blocks.items():
            before, opening, rest = text.partition(f"<!-- {name} -->\n")
            _, closing, after = rest.partition(f"<!-- /{name} -->\n")
            if not closing:
                raise ConfigError(
                    f"it has no place for the {name}",
                    where=str(path),
                    remedy=f"Put the lines <!-- {name} --> and <!-- /{name} --> into it",
                )
            text = f"{before}{opening}\n{block}\n\n{closing}{after}"
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"it cannot be read or written ({error.strerror})", where=str(path)) from error


def _cells(row: Row) -> tuple[str, ...]:
    *first, evaluated, paper = astuple(row)
    return (*first, paper, evaluated)


def _authors(row: Row) -> str:
    return row.paper.partition(",")[0]


def _list(sizes: Mapping[str, str]) -> str:
    return ", ".join(f"{field} {size}" for field, size in sizes.items())


def _part(title: str, text: str) -> str:
    return f"{title}\n{textwrap.indent(text, '  ')}" if title else textwrap.indent(text, "  ")


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def _slots(slots: Sequence[SlotRow]) -> str:
    return _columns([(slot.name, slot.role, slot.size, slot.note) for slot in slots])


def _hyperparameters(description: Description) -> str:
    lines = []
    for each in description.hyperparameters:
        choices = f" of {', '.join(each.choices)}" if each.choices else ""
        lines.append(f"{each.name} = {each.default}{choices} ({each.role})")
        lines.append(textwrap.indent(_filled(each.meaning), "    "))
    return "\n".join(lines)


def _facts(preset: Preset) -> list[str]:
    data, hyper, work, _ = _preset_cells(preset)
    facts = [data, hyper, work, f"source: {preset.source}", f"note: {preset.note}" if preset.note else ""]
    return [fact for fact in facts if fact]


def _preset_cells(preset: Preset) -> tuple[str, str, str, str]:
    data = "; ".join(filter(None, [preset.data, preset.model]))
    hyper = ", ".join(f"{name}={_number(value)}" for name, value in preset.hyper.items())
    source = f"{preset.source}. {preset.note}" if preset.note else preset.source
    return data, hyper, _work(preset), source


def _work(preset: Preset) -> str:
    goal, devices = preset.goal, preset.devices
    parts = [
        f"batch {preset.batch}" if preset.batch else "",
        f"{preset.rounds} rounds" if preset.rounds else "",
        f"{_count(preset.steps, 'step')} each" if preset.steps else "",
        f"{_count(preset.epochs, 'epoch')} each" if preset.epochs else "",
        f"{goal} of {devices} devices" if devices else f"{goal} devices" if goal else "",
        *(f"{name} times {factor} each round" for name, factor in preset.decay.items()),
    ]
    return ", ".join(filter(None, parts))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _number(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _columns(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = [":--"] * len(head)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in (head, rule, *lines))
