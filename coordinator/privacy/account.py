"""What a run's privacy came to, for people and scripts: a number, and what it rests on."""

from __future__ import annotations

import math

import msgspec

from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.privacy.config import Privacy, Sampling, Trust
from coordinator.privacy.events import Event, counted, most


class Happened(msgspec.Struct, frozen=True):
    """An event, and how often it is in the ledger."""

    event: Event
    times: int


class Account(msgspec.Struct, frozen=True):
    """The privacy of a run at one moment.

    Attributes:
        epsilon: spent, by the run's accountant; None for infinite.
        delta: with which.
        counted_delta: what of it the accountant has: a hundredth may be for samples that are too small or too large.
        budget: the greatest epsilon.
        known: epsilon for whoever knows who took part, so that sampling hides nobody; None for infinite.
        releases: lines of the ledger.
        most: in how many of them the device is that is in most.
        trust: who adds the noise.
        clip: of the last release, or the first.
        noise: over the clip.
        accountant: by which epsilon was counted.
        assumptions: on which it rests.
        events: of the ledger; only where they were asked for.
    """

    epsilon: float | None
    delta: float
    counted_delta: float
    budget: float
    known: float | None
    releases: int
    most: int
    trust: str
    clip: float
    noise: float
    accountant: str
    assumptions: tuple[str, ...]
    events: tuple[Happened, ...] = ()


def account_of(journal: Journal, run: str, config: RunConfig, *, detailed: bool) -> Account | None:
    """The privacy of a run so far; None where it has none.

    Args:
        journal: where its ledger is.
        run: its id.
        config: its settings.
        detailed: with the events.
    """
    privacy = config.privacy
    if privacy is None:
        return None
    ledger = journal.ledger(run)
    last = ledger[-1] if ledger else None
    return Account(
        epsilon=0.0 if last is None else finite(last.epsilon),
        delta=privacy.delta,
        counted_delta=privacy.counted_delta,
        budget=privacy.epsilon,
        known=0.0 if last is None else finite(last.known),
        releases=len(ledger),
        most=most(ledger),
        trust=privacy.trust.value,
        clip=privacy.clip if last is None else last.clip,
        noise=privacy.noise,
        accountant=privacy.accountant.value,
        assumptions=assumptions(config, privacy),
        events=tuple(Happened(event, times) for event, times in counted(ledger).items()) if detailed else (),
    )


def assumptions(config: RunConfig, privacy: Privacy) -> tuple[str, ...]:
    """What a run's epsilon rests on, in words for people."""
    found = [_unit(privacy), _noise(config, privacy)]
    if privacy.trust is Trust.CENTRAL:
        found.append(_sampling(config, privacy))
        if privacy.sampling is Sampling.FIXED or privacy.fraction < 1:
            found.append("whoever knows who took part (all devices of the fleet can read it) gets the second epsilon")
    if privacy.metrics:
        found.append("losses, accuracies and times that devices tell are not covered")
    found.append("who is here, and whose reports come in time, does not depend on the devices' data")
    return tuple(found)


def line(account: Account) -> str:
    """An account as one line."""
    known = "" if account.known is None else f", {account.known:.3g} for who knows the cohorts"
    spent = "without bound" if account.epsilon is None else f"{account.epsilon:.3g}"
    return f"epsilon {spent} of {account.budget:g} at delta {account.delta:g}{known}"


def text(account: Account) -> str:
    """An account and what it rests on, a line for each."""
    return "\n".join([f"privacy: {line(account)}", *(f"  {each}" for each in account.assumptions)])


def finite(epsilon: float) -> float | None:
    """As JSON can say it."""
    return epsilon if math.isfinite(epsilon) else None


def _unit(privacy: Privacy) -> str:
    if privacy.trust is Trust.LOCAL:
        return (
            "local, of a device: from what it sends nobody can tell its data from any others, the coordinator neither"
        )
    neighbours = "other data on one device" if privacy.sampling is Sampling.FIXED else "one device more or less"
    return f"central, of a device: models tell no more of it; neighbours differ by {neighbours}"


def _noise(config: RunConfig, privacy: Privacy) -> str:
    clip = f"clip {privacy.clip:g}" if not privacy.quantile else f"a clip that follows quantile {privacy.quantile:g}"
    trusted = "the coordinator sees contributions as they are"
    if config.secagg:
        trusted = "under secure aggregation the coordinator sees sums alone, and devices are trusted to clip"
    if privacy.trust is Trust.LOCAL:
        trusted = "devices draw it"
    return f"noise {privacy.noise:g} times {clip}; {trusted}; counted by dp-accounting's {privacy.accountant}"


def _sampling(config: RunConfig, privacy: Privacy) -> str:
    if privacy.sampling is Sampling.FIXED:
        return f"samples of {config.goal} devices, drawn from those that are here, unknown to the adversary"
    if privacy.fraction >= 1:
        return "every device in every round"
    return f"each device is in a round with probability {privacy.fraction:g}, unknown to the adversary"
