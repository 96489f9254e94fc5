"""A round of many devices of which some drop out, in virtual time, on the pure machine alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from coordinator import events, rounds
from coordinator.events import Event
from coordinator.rounds import Phase, Policy, Round, State

KINDS = ("silent", "stuck", "failing")
"""How a device drops out: it says nothing more, it works for ever, or it says that it cannot."""


@dataclass(frozen=True)
class Ended:
    """How a round ended.

    Attributes:
        phase: REDUCING or ABANDONED.
        reports: how many counted.
        alive: how many of the cohort did not drop out.
        seconds: from selection.
    """

    phase: Phase
    reports: int
    alive: int
    seconds: float


def play(policy: Policy, fleet: int, dropout: float, seed: int) -> Ended:
    """One round whose every device drops out with the same probability, by itself.

    Args:
        policy: of the round.
        fleet: devices that are here.
        dropout: probability.
        seed: of everything random.
    """
    random = Random(seed)
    names = tuple(f"pi-{number:04d}" for number in range(fleet))
    r = Round(2, 0, policy, present=frozenset(names))
    r, [choice] = rounds.advance(r, events.Ticked(0.0))
    assert isinstance(choice, events.Choose)
    chosen = tuple(sorted(random.sample(choice.devices, choice.count)))
    fates = {name: random.choice(KINDS) if random.random() < dropout else "" for name in chosen}
    done = {name: random.uniform(1.0, policy.deadline / 2) for name in chosen}
    r, _ = rounds.advance(r, events.Chosen(chosen, 0.0))
    now = 0.0
    while r.phase is Phase.REPORTING:
        now += 1.0
        assert now <= policy.deadline + 1.0, "it does not end at its deadline"
        for event in _said(r, fates, done, now):
            r, _ = rounds.advance(r, event)
        r, _ = rounds.advance(r, events.Ticked(now))
    alive = sum(not fate for fate in fates.values())
    return Ended(r.phase, len(r.devices(State.REPORTED)), alive, now)


def _said(r: Round, fates: Mapping[str, str], done: Mapping[str, float], now: float) -> list[Event]:
    """What the members say in this second."""
    said: list[Event] = []
    for name in r.devices(State.WORKING):
        over = done[name] <= now
        if over and fates[name] == "failing":
            said.append(events.Failed(name, "no data", now, "DataError"))
        elif over and not fates[name]:
            said.append(events.Reported(name, now))
        elif fates[name] != "silent" or not over:
            said.append(events.Progressed(name, now, 1))
    return said
