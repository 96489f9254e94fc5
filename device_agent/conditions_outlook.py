"""What the agent knows about a run's conditions, as a pure record: part of the session machine's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from edgepfl import eligibility
from edgepfl.eligibility import Conditions, Readings, Unmet

HOLD = 10.0
"""Seconds between a change and the first one for the better after it: what comes and goes faster counts as gone."""

REFRESH = 60.0
"""Seconds after which the coordinator is told newer numbers of the same reasons."""


@dataclass(frozen=True)
class Outlook:
    """A policy and how the device stands to it.

    Attributes:
        policy: what the active run asks, as far as we heard; None: nothing.
        unmet: what of it does not hold.
        changed_at: when other conditions than before became unmet, in seconds of the agent's clock.
        told: what the last Hello said.
        told_at: when the last Hello was due because of a change.
        hold: see :data:`HOLD`.
    """

    policy: Conditions | None = None
    unmet: tuple[Unmet, ...] = ()
    changed_at: float = 0.0
    told: tuple[Unmet, ...] = ()
    told_at: float = 0.0
    hold: float = HOLD

    @property
    def judged(self) -> str:
        """The digest of the policy, empty for none."""
        return eligibility.digest(self.policy)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is unmet, in words."""
        return tuple(each.why for each in self.unmet)

    @property
    def why(self) -> str:
        """What is unmet, in one line; empty where nothing is."""
        return eligibility.reason(self.unmet)

    def under(self, policy: Conditions | None, readings: Readings, at: float) -> Self:
        """The outlook under a policy that just came; a new one is judged afresh."""
        if policy == self.policy:
            return self.seen(readings, at)
        found = eligibility.judge(policy, readings) if policy is not None else ()
        return replace(self, policy=policy, unmet=found, changed_at=at)

    def seen(self, readings: Readings, at: float) -> Self:
        """The outlook after a look at the sensors: a loss counts at once, the return of a condition after a while."""
        if self.policy is None:
            return self
        before, found = _names(self.unmet), eligibility.judge(self.policy, readings, _names(self.unmet))
        if _names(found) == before:
            return replace(self, unmet=found)
        if _names(found) < before and at < self.changed_at + self.hold:
            return self
        return replace(self, unmet=found, changed_at=at)

    def is_news(self, at: float) -> bool:
        """Whether the coordinator should hear of it now."""
        if _names(self.unmet) != _names(self.told):
            return True
        return self.unmet != self.told and at >= self.told_at + REFRESH

    def telling(self, at: float | None = None) -> Self:
        """The outlook after a Hello that was due at ``at``, or that somebody asked for."""
        return replace(self, told=self.unmet, told_at=self.told_at if at is None else at)


def _names(unmet: tuple[Unmet, ...]) -> frozenset[str]:
    return frozenset(each.name for each in unmet)
