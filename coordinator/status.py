"""Where a run stands, for people and scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from coordinator import rounds
from coordinator.busy import Busy
from coordinator.devices import Fleet
from coordinator.journal import Checkpoint, Journal, Result, RunRow
from coordinator.lateness import BufferStatus, Lateness, buffer_status, lateness
from coordinator.privacy.account import Account
from coordinator.reasons import names
from coordinator.roster import DeviceStatus
from coordinator.rounds import Phase, Round


class RunStatus(msgspec.Struct, frozen=True):
    """A run at one moment.

    Attributes:
        run: its id.
        status: running, done, failed or stopped.
        why: of failed and stopped.
        round: the last committed round.
        rounds: training rounds in all.
        phase: of the open round; empty when none is.
        waiting: what it waits for.
        here: who is here.
        metrics: means over the devices of the last committed round that had them.
        state_sha256: digest of the server's state after the last committed round.
        bytes_in: at the coordinator's socket, over all committed rounds.
        bytes_out: likewise.
        doubled: devices whose name two agents have, and what to do about it.
        devices: what each device is doing, and why; left out while watching, where it would be too much.
        buffer: of a buffered run, see :mod:`coordinator.lateness`.
        refused: messages that could not be used, by reason, since the coordinator's start.
        unmet: the devices that are here and cannot take part just now, and why.
        attempt: of the open round, 0 for the first.
        secagg: how far the secure aggregation of the open round is; "on" where nothing is waited for, empty for none.
        privacy: of a private run, what it spent and on what that rests.
    """

    run: str
    status: str
    why: str
    round: int
    rounds: int
    phase: str
    waiting: str
    here: tuple[str, ...]
    metrics: dict[str, float]
    state_sha256: str
    bytes_in: int = 0
    bytes_out: int = 0
    doubled: dict[str, str] = {}
    devices: tuple[DeviceStatus, ...] = ()
    buffer: BufferStatus | None = None
    refused: dict[str, int] = {}
    unmet: dict[str, str] = {}
    attempt: int = 0
    secagg: str = ""
    privacy: Account | None = None


@dataclass(frozen=True)
class Totals:
    """What the committed rounds of a run come to, up to some round: see :class:`RunStatus`."""

    run: str = ""
    round: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    lateness: Lateness | None = None


def totals(journal: Journal, run: str, round_: int, before: Totals) -> Totals:
    """The totals up to the committed round ``round_``; only what came after ``before`` is read."""
    if before.run != run or before.round > round_:
        before = Totals(run)
    if before.round == round_:
        return before
    costs, results = journal.costs(run, before.round).values(), journal.results(run, before.round)
    return Totals(
        run,
        round_,
        {**before.metrics, **means(results)},
        before.bytes_in + sum(cost.bytes_in for cost in costs),
        before.bytes_out + sum(cost.bytes_out for cost in costs),
        lateness(results, before.lateness),
    )


def status_of(row: RunRow, checkpoint: Checkpoint, sums: Totals, fleet: Fleet, open_round: Round | None) -> RunStatus:
    """The status of a run."""
    return RunStatus(
        run=row.id,
        status=row.status,
        why=row.why,
        round=checkpoint.round,
        rounds=row.config.rounds,
        phase=open_round.phase.value if open_round is not None else "",
        waiting=rounds.waiting(open_round) if open_round is not None else "",
        attempt=open_round.attempt if open_round is not None else 0,
        here=tuple(sorted(name for name, known in fleet.devices.items() if known.present)),
        metrics=dict(sums.metrics),
        state_sha256=checkpoint.state,
        bytes_in=sums.bytes_in,
        bytes_out=sums.bytes_out,
        buffer=buffer_status(row.config.buffer, min(checkpoint.round, row.config.rounds), sums.lateness, open_round),
    )


def with_busy(status: RunStatus, busy: Busy, open_round: Round) -> RunStatus:
    """The status with whose old work is waited for, while devices are selected."""
    if open_round.phase is not Phase.SELECTING or not busy.works:
        return status
    text = f"{status.waiting}; still ending work of before: {names(sorted(busy.works))}"
    return msgspec.structs.replace(status, waiting=text)


def means(results: tuple[Result, ...]) -> dict[str, float]:
    """Each metric's mean over the devices, in the last round in which any device had it."""
    last: dict[str, int] = {}
    for result in results:
        last |= dict.fromkeys(result.metrics, result.round)
    found: dict[str, float] = {}
    for name, number in last.items():
        values = [r.metrics[name] for r in results if r.round == number and name in r.metrics]
        found[name] = math.fsum(value / len(values) for value in values)  # a sum of what devices claim may overflow
    return found
