"""What a cohort is told to do in a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.config import RunConfig
from edgepfl import wire
from edgepfl.algorithms import Algorithm
from edgepfl.errors import RunError, WireError
from edgepfl.plan import Plan
from edgepfl.seeds import derive, generator
from edgepfl.wire import BlobRef, Member, Task

HEARTBEATS = 4  # signs of life in a lease


def is_final(config: RunConfig, number: int) -> bool:
    """Whether a round is the last one, which trains nothing and evaluates the result."""
    return number > config.rounds


def make(
    run: str,
    config: RunConfig,
    algorithm: Algorithm,
    plan: Plan,
    *,
    number: int,
    attempt: int,
    cohort: Iterable[str],
    accepted: Mapping[str, int],
    bundle: BlobRef,
    download: BlobRef,
) -> Task:
    """The task of one attempt at one round, for these members of its cohort."""
    final = is_final(config, number)
    due = config.evaluate_every > 0 and (number - 1) % config.evaluate_every == 0
    coins = generator(config.seed, "coins", number)
    return Task(
        run=run,
        round=number,
        attempt=attempt,
        cohort=tuple(Member(device, accepted.get(device, -1)) for device in sorted(cohort)),
        bundle=bundle,
        download=download,
        hyper={name: float(getattr(algorithm, name)) for name in plan.hyper},
        steps=0 if final else algorithm.local_steps(config.steps, coins),
        seed=derive(config.seed, "round", number),
        evaluate=final or due,
        tune_steps=config.tune_steps,
        final=final,
        deadline=config.deadline,
        heartbeat=config.lease / HEARTBEATS,
    )


def widest(config: RunConfig) -> tuple[str, ...]:
    """A cohort whose names take as many bytes as any of this run can."""
    return tuple(f"{k:036}" for k in range(config.goal))


def check_size(task: Task) -> None:
    """Refuse a run whose tasks do not fit into a message.

    Raises:
        RunError: they do not.
    """
    try:
        wire.encode(task)
    except WireError as error:
        raise RunError(
            f"its tasks would not fit into a message ({error.what})",
            where=task.run,
            remedy="Select fewer devices, or export a smaller model",
        ) from error
