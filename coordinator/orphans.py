"""Messages of devices at work on what nobody waits for: each is answered, so that none works for nothing.

What happens where the two sides disagree about a run:

* **Its report on that round counts already**, and the message is late, or the device does not know: the verdict in a
  Commit.  A Cancel would take back what counts.
* **Another attempt is open**, or the device has no seat in it: Cancel; it says Stopped and may be chosen again.  A
  report of a round that is over gets the verdict in a Commit.
* **The run is over**: Cancel, and the verdict for a report.
* **The coordinator does not know the run** (its state was deleted, or the device was with another coordinator): Cancel
  that says so.  The device stops, keeps its settled state and its report, and sends the report again only after the
  next connection or roll call, in case the coordinator's state was put back.
* **The coordinator was set back** to an older state: a device that has settled a later round refuses the round with
  Failed("settled"), and one that has reported on a later round with Failed("ahead"): a person must know.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from coordinator.journal import Journal
from coordinator.reports import is_accepted, verdict
from coordinator.rounds import Phase, Round, State
from edgepfl.wire import Cancel, Commit, Failed, Progress, Report

log = logging.getLogger(__name__)
Work: TypeAlias = Progress | Failed | Report


def why_not(work: Work, open_round: Round) -> str:
    """Why the active run does not want a device's work, for people; empty where it does, or has it already."""
    at_hand = open_round.task_of(work.device) or (open_round.number, open_round.attempt)
    of_it = (work.round, work.attempt)
    if of_it > at_hand:
        return f"round {work.round}, attempt {work.attempt} is not begun here: the coordinator was set back"
    if of_it < at_hand:
        return f"round {at_hand[0]}, attempt {at_hand[1]} is open"
    seat = open_round.seats.get(work.device)
    if seat is None:
        return "it has no part in this round"
    held = open_round.phase is Phase.REPORTING and seat.state is State.WAITING
    if seat.state is State.REPORTED or open_round.awaits(work.device) or held:
        return ""
    return seat.why or f"the round is {open_round.phase.value}"


def outside(work: Work, journal: Journal) -> Cancel | Commit:
    """The answer to work for a run that does not go on."""
    if journal.run(work.run) is None:
        log.warning(
            "%s works for run %r, which is not known here: was the state directory deleted or set back, or does the "
            "device belong to another coordinator? It is told to stop; what it keeps of that run is not touched",
            work.device,
            work.run,
        )
        return Cancel(work.run, work.round, work.attempt, "unknown run", unknown=True)
    accepted = journal.accepted(work.run)
    if isinstance(work, Report) or is_accepted(work, accepted):
        return verdict(work, accepted)
    return Cancel(work.run, work.round, work.attempt, "the run is over")
