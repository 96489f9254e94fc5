"""What a run was agreed to be, and what follows from that for each of its rounds.  Nothing here does anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from coordinator import (
    asynchronous,
    buffered,
    coded,
    members,
    participation,
    quarantine,
    robust,
    rollout,
    tasks,
    updater,
)
from coordinator.arithmetic import Sitting
from coordinator.checkpoint import Saved
from coordinator.cohort import choose
from coordinator.conditions import obstacle
from coordinator.config import RunConfig
from coordinator.devices import Fleet
from coordinator.exact import Grid
from coordinator.members import Hubs
from coordinator.optimisers import Server
from coordinator.privacy import agreement as privacy
from coordinator.privacy.release import clip_of
from coordinator.seats import Policy, Round, State
from coordinator.secagg import agreement
from coordinator.staleness import weighting_of
from coordinator.sums import Form
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import CodecError, ConfigError
from edgepfl.plan import Plan
from edgepfl.secagg.vector import Layout
from edgepfl.seeds import derive
from edgepfl.wire import BlobRef, Report, Task

_ROUNDS = 16  # whose draws are remembered


@dataclass(frozen=True)
class Terms:
    """What one run was agreed to be: nothing of it changes from round to round.

    Attributes:
        id: of the run.
        config: its settings.
        plan: of its bundle.
        runtimes: those that the bundle has graphs for.
        bundle: where devices fetch it.
        algorithm: the run's; that of a round is :meth:`of_round`.
        rule: robust, by which means are made; None for the weighted mean.
        server: the optimiser that turns the mean change into a step; None for the change itself.
        hubs: who may report for the devices behind it.
    """

    id: str
    config: RunConfig
    plan: Plan
    runtimes: frozenset[str]
    bundle: BlobRef
    algorithm: Algorithm
    rule: robust.Rule | robust.Clip | None
    server: Server | None
    hubs: Hubs
    _drawn: dict[int, tuple[Algorithm, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, run: str, config: RunConfig, bundle: Bundle, offered: BlobRef, hubs: Hubs) -> Terms:
        """The terms of a run, which :meth:`check` has not seen yet.

        Args:
            run: its id.
            config: its settings.
            bundle: what it trains with.
            offered: where devices fetch the bundle.
            hubs: the coordinator's.

        Raises:
            EdgepflError: one of the settings names nothing that there is, or the bundle was made by another version.
        """
        plan = bundle.plan
        algorithm = privacy.tailored(updater.algorithm_of(plan, config.hyper), config)
        rule = robust.rule_of(config.robust)
        server = updater.server_of(algorithm, plan, config.server_optimizer)
        return cls(run, config, plan, frozenset(bundle.graphs), offered, algorithm, rule, server, hubs)

    def check(self) -> None:
        """Refuse settings that the algorithm cannot run with.

        Raises:
            ConfigError: with the reason.
        """
        config, algorithm, plan = self.config, self.algorithm, self.plan
        participation.check(algorithm, config)
        participation.check_over(algorithm, config)
        updater.check_decay(algorithm, plan, config.rounds, config.decay)
        robust.check(algorithm, plan, self.rule, config.minimum)
        coded.check(algorithm, plan, config.codec)
        asynchronous.check(algorithm, plan, config, self.hubs)
        agreement.check(algorithm, plan, config, self.hubs)
        privacy.check(algorithm, plan, config, self.hubs)
        if self.rule is not None and config.exact:
            raise ConfigError("exact sums know no robust rule", where="robust", remedy="Give one of the two")
        if self.hubs:
            members.check_summable(algorithm, plan, " and ".join(sorted(self.hubs)), config.robust)

    # Who takes part.

    def admits(self, device: str, fleet: Fleet) -> bool:
        """Whether a device may be chosen; a hub that nobody named, or one without devices, may not."""
        known = fleet.devices.get(device)
        if known is None or obstacle(known.hello, self.config.conditions):
            return False
        return fleet.can(device, self.runtimes) and members.speaks_for_itself(known.hello, self.hubs)

    def canaries(self, cohort: tuple[str, ...], number: int, attempt: int) -> tuple[str, ...]:
        """Who gets the run's first task before the others; a hub does not, since its own round takes too long.

        Nobody does under secure aggregation: nobody can report before all have exchanged their keys.

        Args:
            cohort: whoever is chosen.
            number: of the round.
            attempt: at the round.
        """
        devices = tuple(device for device in cohort if device not in self.hubs)
        if number > 1 or not self.config.canary or self.config.secagg or len(devices) < len(cohort):
            return ()
        count = rollout.canaries(len(cohort), self.config.canary)
        return choose(devices, count, derive(self.config.seed, "canary"), number, attempt)

    @property
    def quarantine(self) -> quarantine.Rule:
        """When devices that fail sit out some rounds, and how many."""
        return quarantine.Rule(self.config.quarantine_after, self.config.quarantine_rounds)

    # What a round is.

    def is_final(self, number: int) -> bool:
        """Whether a round trains nothing and evaluates the result."""
        return tasks.is_final(self.config, number)

    def policy_of(self, number: int) -> Policy:
        """What a round waits for: the last one, which trains nothing, for everyone it chose."""
        config = self.config
        return Policy(
            config.goal,
            config.minimum,
            config.gather,
            config.deadline,
            config.lease,
            over=config.over,
            halt=config.halt_failures,
            buffer=0 if tasks.is_final(config, number) else config.buffer,
            max_staleness=config.max_staleness,
        )

    def of_round(self, number: int) -> Algorithm:
        """The algorithm with the runtime hyperparameters of a round."""
        return self._of(number)[0]

    def steps_of(self, number: int) -> int:
        """Minibatch steps of a round; 0 where it trains nothing."""
        return self._of(number)[1]

    def _of(self, number: int) -> tuple[Algorithm, int]:
        """Algorithm and steps of a round: each report asks for them, and to draw them takes two generators."""
        number = max(number, 1)  # before the first round nothing is open
        found = self._drawn.get(number)
        if found is None:
            algorithm = updater.of_round(
                self.algorithm, self.plan, number=number, seed=self.config.seed, decay=self.config.decay
            )
            found = algorithm, tasks.steps_of(self.config, algorithm, number)
            if len(self._drawn) >= _ROUNDS:
                self._drawn.clear()
            self._drawn[number] = found
        return found

    def task(
        self,
        number: int,
        attempt: int,
        devices: tuple[str, ...],
        download: BlobRef,
        accepted: Mapping[str, int],
        clip: float = 0.0,
    ) -> Task:
        """What devices are told to do.

        Args:
            number: of the round.
            attempt: at the round.
            devices: whom it is for.
            download: what they start from.
            accepted: the last round of each device that counts.
            clip: of a private run's contributions in this round.
        """
        return tasks.make(
            self.id,
            self.config,
            self.of_round(number),
            self.plan,
            number=number,
            attempt=attempt,
            cohort=devices,
            accepted=accepted,
            bundle=self.bundle,
            download=download,
            settings=members.settings(self.plan, self.config.hyper) if self.hubs else {},
            grid=self.grid.top if self.hubs else 0,
            clip=clip,
        )

    # What comes back.

    @property
    def grid(self) -> Grid:
        """Where exact sums lie."""
        return Grid.of(self.config.max_norm, self.config.max_examples)

    def form(self, number: int) -> Form:
        """What a hub's sums look like in a round."""
        return Form(self.plan, self.of_round(number), self.grid)

    @cached_property
    def layout(self) -> Layout | None:
        """What a masked upload looks like; None where none is masked."""
        return agreement.layout_of(self.algorithm, self.plan, self.config)

    def refusal(self, report: Report) -> str:
        """Why the upload of a report is not worth fetching; empty if it is."""
        try:
            members.check(
                report,
                self.plan,
                hubs=self.hubs,
                steps=self.steps_of(report.round),
                max_examples=self.config.max_examples,
                most_bytes=self.form(report.round).most_bytes if report.members else 0,
                words=self.config.codec,
                masked=0 if self.layout is None else self.layout.nbytes,
            )
        except CodecError as error:
            return str(error)
        return ""

    def clip(self, saved: Saved) -> float:
        """The bound on a private run's contributions from this state on; 0 for a run that is not private."""
        return 0.0 if self.config.privacy is None else clip_of(saved.state, self.config.privacy.clip)

    def sitting(self, r: Round, algorithm: Algorithm, saved: Saved) -> Sitting:
        """What the mathematics of an attempt starts from: nothing is folded.

        Args:
            r: the attempt.
            algorithm: that of the round.
            saved: the state that it starts from.
        """
        return Sitting(
            r.number,
            r.attempt,
            algorithm,
            saved,
            cohort=r.devices(State.REPORTED) if r.policy.buffer else tuple(sorted(r.seats)),
            last=r.number == self.config.rounds,
            grid=self.grid if self.config.exact or self.hubs else None,
            rule=self.rule,
            server=self.server,
            scale=buffered.scales(r, weighting_of(self.config.staleness)),
            layout=self.layout,
            release=privacy.release_of(self.config, self.clip(saved), self.layout),
        )
