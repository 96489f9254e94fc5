"""What a hub's run is: what its parent's task says, as far as the hub's own devices have to do with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from coordinator import members
from coordinator.exact import Grid
from coordinator.seats import Policy
from coordinator.tasks import HEARTBEATS
from coordinator.terms import Terms
from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError, StoreError
from edgepfl.seeds import derive
from edgepfl.wire import BlobRef, Member, Task

_FOR_ROUNDS = 1 / 2  # of the parent's deadline; see coordinator.hub.run for selection
_FOR_GATHERING = 1 / 8


class Errand(msgspec.Struct, frozen=True):
    """What the parent wants done.

    Attributes:
        task: the parent's.
        first: the number of the first of the hub's own rounds in it.
        attempt: at them.
        rounds: how many there are.
    """

    task: Task
    first: int
    attempt: int
    rounds: int = 1

    @property
    def last(self) -> int:
        """The number of the last of its rounds."""
        return self.first + self.rounds - 1


def read_errand(data: bytes, *, where: str) -> Errand:
    """The errand in a hub's file.

    Raises:
        StoreError: it is none.
    """
    try:
        return msgspec.msgpack.decode(data, type=Errand)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise StoreError(f"it cannot be read ({error})", where=where, remedy="Update edgepfl") from error


def errand_of(task: Task, rounds: int, before: Errand | None, committed: int) -> Errand:
    """What a task asks for.

    Where one round of the hub is one of the parent's it has the parent's numbers; else its rounds are counted on, and
    so are its attempts, since a number may be tried again that an errand which came to nothing tried.

    Args:
        task: the parent's.
        rounds: of the hub in one of the parent's that trains, 0 for one by the parent's numbers.
        before: the last errand of the run.
        committed: the hub's last round that counts.
    """
    if rounds == 0:
        return Errand(task, task.round, task.attempt)
    return Errand(task, committed + 1, before.attempt + 1 if before else 0, rounds if task.steps else 1)


@dataclasses.dataclass(frozen=True)
class HubTerms(Terms):
    """What a hub's run is while it does one errand.

    Attributes:
        errand: its rounds are those that these terms speak of.
    """

    errand: Errand

    @classmethod
    def under(cls, terms: Terms, errand: Errand) -> HubTerms:
        """The terms of a run for an errand, in place of the coordinator's that it would have without a parent."""
        given = {field.name: getattr(terms, field.name) for field in dataclasses.fields(terms) if field.init}
        return cls(**given, errand=errand)

    def check(self) -> None:
        """Refuse an algorithm that sums are not enough for; the parent has checked the settings.

        Raises:
            ConfigError: it is one.
        """
        members.check_summable(self.algorithm, self.plan, "this hub")

    def canaries(self, cohort: tuple[str, ...], number: int, attempt: int) -> tuple[str, ...]:  # noqa: ARG002  none
        """Nobody: the parent's had their turn."""
        return ()

    def is_final(self, number: int) -> bool:  # noqa: ARG002  no round is
        """False as far as committing goes: a round that only evaluates waits for the parent like any other."""
        return False

    def policy_of(self, number: int) -> Policy:  # noqa: ARG002  all rounds of an errand wait for the same
        """What a round waits for, each wait a part of the parent's."""
        config, patience = self.config, self.errand.task.deadline
        return Policy(
            config.goal,
            config.minimum,
            min(config.gather, patience * _FOR_GATHERING),
            min(config.deadline, patience * _FOR_ROUNDS),
            config.lease,
            max_staleness=config.max_staleness,
        )

    def of_round(self, number: int) -> Algorithm:  # noqa: ARG002  the parent says what it is
        """The algorithm with the hyperparameters of the parent's task.

        Raises:
            ConfigError: it has none of such a name.
        """
        hyper = self.errand.task.hyper
        if unknown := sorted(hyper.keys() - self.plan.hyper.keys()):
            raise ConfigError(f"{self.plan.algorithm} has no runtime hyperparameter {unknown[0]!r}", where="task")
        return dataclasses.replace(self.algorithm, **hyper)  # type: ignore[arg-type]  # floats by name

    def steps_of(self, number: int) -> int:  # noqa: ARG002  the parent says how many
        """Minibatch steps of the parent's task."""
        return self.errand.task.steps

    def task(
        self,
        number: int,
        attempt: int,
        devices: tuple[str, ...],
        download: BlobRef,
        accepted: Mapping[str, int],
        clip: float = 0.0,  # noqa: ARG002  no private run has hubs
    ) -> Task:
        """What the hub's devices are told to do: the parent's task, as one of the hub's own rounds.

        Args:
            number: of the hub's round.
            attempt: at the round.
            devices: whom it is for.
            download: what they start from.
            accepted: the last round of each device that counts.
            clip: of a private run.
        """
        task, own = self.errand.task, number - self.errand.first
        return msgspec.structs.replace(
            task,
            round=number,
            attempt=attempt,
            cohort=tuple(Member(device, accepted.get(device, -1)) for device in sorted(devices)),
            bundle=self.bundle,
            download=download,
            seed=derive(task.seed, "own", own) if own else task.seed,
            evaluate=task.evaluate and not own,
            deadline=self.policy_of(number).deadline,
            heartbeat=self.config.lease / HEARTBEATS,
        )

    @property
    def grid(self) -> Grid:
        """Where the sums lie: where the parent wants them."""
        return Grid(self.errand.task.grid)
