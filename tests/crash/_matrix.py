"""The kill matrix: what a session of tests has seen, as the table in docs/kills.md.

``EDGEPFL_SOAK=1 EDGEPFL_KILL_TABLE=docs/kills.md python -m pytest tests/crash`` writes it between the two marks there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
WHERE = os.environ.get("EDGEPFL_KILL_TABLE", "")
SOAK = bool(os.environ.get("EDGEPFL_SOAK"))


@dataclass(frozen=True)
class Row:
    """One kill, and how it went.

    Attributes:
        who: was ended.
        point: what it was doing.
        when: "before" or "after" the fsync; empty where there is none.
        left: what of the unsynced was left, a key of :data:`_disk.LEFT`; "everything" is a kill without a power cut.
        algorithm: of the run.
        seconds: until the round went on; None where that was not measured.
        same: whether the model after the round, and all personal state, are those of the run in peace.
    """

    who: str
    point: str
    when: str
    left: str
    algorithm: str
    seconds: float | None
    same: bool


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown, those of one point in one line."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.who, row.point, row.when].append(row)
    lines = [
        "| killed | while | fsync | kills | power cuts | recovered | seconds to resume | model, personal state |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (who, point, when), found in sorted(groups.items()):
        kills = sum(row.left == "everything" for row in found)
        seconds = sorted(row.seconds for row in found if row.seconds is not None)
        resumed = f"{seconds[len(seconds) // 2]:.1f}, at most {seconds[-1]:.1f}" if seconds else "-"
        same = sum(row.same for row in found)
        verdict = "identical" if same == len(found) else f"DIFFERENT in {len(found) - same}"
        names = ", ".join(sorted({row.algorithm for row in found}))
        lines.append(
            f"| {who} | {point} | {when or '-'} | {kills} | {len(found) - kills} | {len(found)} of {len(found)} "
            f"| {resumed} | {verdict} ({names}) |"
        )
    return "\n".join(lines)


def write(rows: Iterable[Row], path: Path) -> None:
    """Put the table between the marks of a file."""
    text = path.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(f"{head}{BEGIN}\n{table(rows)}\n{END}{tail}", encoding="utf-8")
