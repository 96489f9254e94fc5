"""A run's account of what it told of its devices: samples, the keys of its noise, the ledger and the budget.

A line of the ledger is written before what it is about is released: of central privacy when a sum is reduced, with the
secret that its noise is made of; of local privacy when devices get their task, since their contributions count as
released however the attempt ends.  The secret goes with the attempt: after a power cut the same sum gets the same
noise, and once the attempt is over nobody can make that noise again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.privacy import accountant, agreement, sampling
from coordinator.privacy.config import Privacy, Sampling, Trust
from coordinator.privacy.events import Entry, Event, counted, most
from coordinator.privacy.release import key_for
from coordinator.seats import Round
from edgepfl.privacy import KEY_BYTES
from edgepfl.wire import Report

log = logging.getLogger(__name__)


class Accounting:
    """That of one run.

    Args:
        run: its id.
        config: its settings.
        privacy: of these.
        journal: where the ledger is.
        draw: so many random bits that nobody can guess, as a number.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        privacy: Privacy,
        journal: Journal,
        draw: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._run = run
        self._config = config
        self._privacy = privacy
        self._journal = journal
        self._draw = draw
        self._source = 0  # of the last fixed sample; after a restart nobody knows, and then nothing is gained by it
        self._told = ""

    @classmethod
    def of(cls, run: str, config: RunConfig, journal: Journal, draw: Callable[[int], int]) -> Self | None:
        """That of a run; None where it is not private."""
        return None if config.privacy is None else cls(run, config, config.privacy, journal, draw)

    def sample(self, devices: tuple[str, ...], count: int, clip: float, r: Round) -> tuple[str, ...]:
        """The cohort of a round; empty where it cannot be drawn now, and must be tried again later.

        Args:
            devices: who could take part.
            count: of a fixed sample, how many.
            clip: of the round.
            r: the attempt.
        """
        privacy = self._privacy
        if privacy.sampling is Sampling.FIXED:
            self._source = len(devices)
            if self._exceeds(self._event(min(count, len(devices)))):
                self._tell(f"of {len(devices)} devices that are here a sample of {count} would exceed the budget")
                return ()
            chosen = sampling.fixed(devices, count, self._draw)
        elif not agreement.likely(self._config, privacy, len(devices)):
            self._tell(f"{len(devices)} devices are here, too few for a sample of {privacy.fraction:g}")
            return ()
        else:
            chosen = sampling.poisson(devices, privacy.fraction, self._draw)
            if not self._config.minimum <= len(chosen) <= self._config.goal:
                return ()
        if privacy.trust is Trust.LOCAL:
            self._enter(r.number, r.attempt, chosen, clip)
        return chosen

    def key(self, r: Round, devices: tuple[str, ...], reports: Mapping[str, Report], clip: float) -> bytes:
        """What the noise on an attempt's sum is made of, written down with the ledger's line.

        Args:
            r: the attempt.
            devices: whose reports count.
            reports: of the attempt, by device.
            clip: of the round.
        """
        secret = self._journal.secret(self._run, r.number, r.attempt)
        if secret is None:
            secret = self._draw(8 * KEY_BYTES).to_bytes(KEY_BYTES, "little")
            if self._privacy.trust is Trust.CENTRAL:
                self._enter(r.number, r.attempt, devices, clip, secret, tuple(r.seats))
        uploads = [upload.sha256 if (upload := reports[device].upload) else "" for device in devices]
        return key_for(secret, devices, uploads)

    def discreet(self, report: Report) -> Report:
        """A report without what a device should not have told: an older agent, or one that does not care."""
        if self._privacy.metrics:
            return report
        return msgspec.structs.replace(report, metrics={}, seconds={}, kept="0" * len(report.kept))

    def exhausted(self) -> str:
        """Why no further round may be trained, in words; empty where one may."""
        privacy, delta = self._privacy, self._privacy.counted_delta
        ledger = self._journal.ledger(self._run)
        if not ledger:
            return ""  # that one round can be trained was seen when the run began
        now, following = self._spent(ledger)[0], self._spent([*ledger, _further(ledger, ledger[-1].event)])[0]
        if following <= privacy.epsilon:
            return ""
        return (
            f"the privacy budget of epsilon {privacy.epsilon:g} at delta {privacy.delta:g} is spent: {now:.4g} after "
            f"{len(ledger)} releases, and another round would make it {following:.4g}"
            + ("" if delta == privacy.delta else f" ({delta / privacy.delta:.0%} of delta is the accountant's)")
        )

    def ended(self) -> str:
        """Why the run trained fewer rounds than it was to; empty where it did not."""
        ledger = self._journal.ledger(self._run)
        return self.exhausted() if ledger and ledger[-1].round < self._config.rounds else ""

    def _exceeds(self, event: Event) -> bool:
        ledger = self._journal.ledger(self._run)
        return self._spent([*ledger, _further(ledger, event)])[0] > self._privacy.epsilon

    def _event(self, sample: int) -> Event:
        return agreement.event_of(self._privacy, sample=sample, source=max(self._source, sample))

    def _enter(
        self,
        number: int,
        attempt: int,
        devices: tuple[str, ...],
        clip: float,
        secret: bytes = b"",
        cohort: tuple[str, ...] = (),
    ) -> None:
        ledger = [e for e in self._journal.ledger(self._run) if (e.round, e.attempt) != (number, attempt)]
        entry = Entry(number, attempt, self._event(len(cohort or devices)), devices, clip)
        epsilon, known = self._spent([*ledger, entry])
        self._journal.release(self._run, Entry(number, attempt, entry.event, devices, clip, epsilon, known), secret)
        log.info("%s: round %d: epsilon %.4g at delta %g", self._run, number, epsilon, self._privacy.delta)

    def _spent(self, ledger: list[Entry]) -> tuple[float, float]:
        """Epsilon of a ledger, and epsilon for whoever knows who took part."""
        return spent(ledger, self._privacy)

    def _tell(self, why: str) -> None:
        if why != self._told:
            log.warning("%s: no cohort can be drawn: %s", self._run, why)
        self._told = why


def _further(ledger: list[Entry], event: Event) -> Entry:
    """A further line, with every device in it."""
    devices = tuple({device for entry in ledger for device in entry.devices}) or ("any",)
    return Entry(0, 0, event, devices, 0.0)


def spent(ledger: list[Entry], privacy: Privacy) -> tuple[float, float]:
    """Epsilon of a ledger, and epsilon for whoever knows who took part.

    Of local privacy both are that of the device that gave the most contributions.

    Raises:
        ConfigError: ``dp-accounting`` is not installed.
    """
    if not ledger:
        return 0.0, 0.0
    delta, times = privacy.counted_delta, most(ledger)
    known = max(accountant.known(event, times, privacy.delta) for event in {entry.event.known for entry in ledger})
    if privacy.trust is Trust.LOCAL:
        return known, known
    return accountant.epsilon(counted(ledger), delta, privacy.accountant), known
