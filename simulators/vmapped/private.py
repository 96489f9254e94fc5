"""Differential privacy in a computed federation: the product's own clipping, noise and accountant.

Samples and noise follow from the run's seed, so that a simulation can be repeated: whoever knows the seed knows them,
and nothing is private from that person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from coordinator.config import MOST_SELECTED, RunConfig
from coordinator.privacy import accountant, agreement, sampling
from coordinator.privacy.config import Privacy, Sampling, Trust
from coordinator.privacy.release import Bounded, Release, blurred, clip_of
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Role
from edgepfl.privacy import KEY_BYTES, contribution
from edgepfl.seeds import derive, generator
from edgepfl.tree import Trees


class Veil:
    """What makes a computed run private.

    Args:
        config: of a run on real devices that would do the same.
        algorithm: the run's.
        plan: its plan.
        seed: of samples and noise.

    Raises:
        ConfigError: it cannot be private.
    """

    def __init__(self, config: RunConfig, algorithm: Algorithm, plan: Plan, seed: int) -> None:
        if config.privacy is None:
            raise ConfigError("it says nothing of privacy", where="privacy")
        agreement.check(algorithm, plan, config, ())
        self.config, self.privacy = config, config.privacy
        self._plan = plan
        self._seed = seed

    def choose(self, names: Sequence[str], number: int) -> tuple[str, ...]:
        """The cohort of a round."""
        draws = generator(self._seed, "privacy", "sample", number)

        def draw(bits: int) -> int:
            return int.from_bytes(draws.bytes(8), "little") >> (64 - bits)

        if self.privacy.sampling is Sampling.FIXED:
            return sampling.fixed(names, self.config.goal, draw)
        while True:
            chosen = sampling.poisson(names, self.privacy.fraction, draw)
            if self.config.minimum <= len(chosen) <= self.config.goal:
                return chosen

    def reduction(self, state: Trees, cohort: Iterable[str], algorithm: Algorithm, device: str) -> Bounded:
        """What a round's contributions are folded into."""
        return Bounded(self._plan.by_role(Role.UP), cohort, self._release(state), device, algorithm)

    def contributed(self, upload: Trees, state: Trees, device: str, number: int) -> Trees:
        """What a device sends: clipped, and with its own noise where privacy is local."""
        terms = agreement.terms_of(self.privacy, clip_of(state, self.privacy.clip))
        if terms is None:
            raise ConfigError("it bounds no contribution", where="privacy")
        return contribution(upload, terms, lambda: self._key("contribution", number, device))

    def blurred(self, got: Cohort, state: Trees, below: int) -> tuple[Cohort, Trees]:
        """What the update may see of a round, and what is to be remembered."""
        return blurred(self._release(state), got, got.total, below, self._key("sum", got.number))

    def epsilon(self, rounds: int) -> float:
        """Spent after so many rounds; of local privacy, by a device that was in all of them.

        Raises:
            ConfigError: ``dp-accounting`` is not installed.
        """
        source = max(self.privacy.population, self.config.goal)
        event = agreement.event_of(self.privacy, sample=self.config.goal, source=source)
        if self.privacy.trust is Trust.LOCAL:
            return accountant.known(event, rounds, self.privacy.delta)
        return accountant.epsilon({event: rounds}, self.privacy.counted_delta, self.privacy.accountant)

    def exhausted(self, rounds: int) -> bool:
        """Whether a further round would exceed the budget."""
        return self.epsilon(rounds + 1) > self.privacy.epsilon

    def _release(self, state: Trees) -> Release:
        found = agreement.release_of(self.config, clip_of(state, self.privacy.clip))
        if found is None:
            raise ConfigError("it releases nothing", where="privacy")
        return found

    def _key(self, *names: str | int) -> bytes:
        seed = derive(self._seed, "privacy", *names)
        return hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=KEY_BYTES).digest()


def configured(privacy: Privacy, devices: int, cohort: int, rounds: int) -> RunConfig:
    """The settings of a run on real devices: the fleet is the population, and the cohort what it expects.

    Args:
        privacy: of the run.
        devices: of the fleet.
        cohort: devices of a round.
        rounds: that train.

    Raises:
        ConfigError: such a run cannot be.
    """
    privacy = replace(privacy, population=privacy.population or devices)
    goal = cohort
    if privacy.sampling is Sampling.POISSON:
        if privacy.fraction == 1 and cohort < devices:
            privacy = replace(privacy, fraction=cohort / devices)
        goal = accountant.goal_for(privacy.population, privacy.fraction, privacy.tail(rounds) / 2)
    if goal > MOST_SELECTED:
        raise ConfigError(
            f"a round may have {goal} devices, and {MOST_SELECTED} are the most", where="--cohort", remedy="Lower it"
        )
    return RunConfig(rounds=rounds, goal=goal, minimum=1, privacy=privacy)
