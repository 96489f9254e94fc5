"""All that ``edgepfl run status`` shows of a run, put together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coordinator.busy import Busy
from coordinator.conditions import with_unmet
from coordinator.devices import Fleet
from coordinator.journal import Checkpoint, RunRow
from coordinator.roster import Background, roster
from coordinator.rounds import Round
from coordinator.status import RunStatus, Totals, status_of, with_busy


def overview(
    row: RunRow,
    checkpoint: Checkpoint,
    sums: Totals,
    fleet: Fleet,
    open_round: Round | None,
    *,
    busy: Busy,
    refused: Mapping[str, int],
    doubled: Mapping[str, str],
    background: Background | None,
    at: float,
) -> RunStatus:
    """The status of a run.

    Args:
        row: the run.
        checkpoint: its last one.
        sums: what its committed rounds come to.
        fleet: who is here.
        open_round: its open round, if there is one.
        busy: who still works on what is not wanted.
        refused: messages that could not be used, by reason.
        doubled: names that two agents have, and why we think so.
        background: what is known of its devices beside that; None: not to say of each what it is doing.
        at: the time, on the coordinator's clock.
    """
    found = status_of(row, checkpoint, sums, fleet, open_round)
    found = msgspec.structs.replace(found, refused=dict(refused), doubled=dict(doubled))
    if open_round is not None:
        found = with_busy(with_unmet(found, fleet, row.config.conditions), busy, open_round)
    if background is not None:
        found = msgspec.structs.replace(found, devices=roster(fleet, open_round, background, at))
    return found
