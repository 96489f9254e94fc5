"""What a cohort is told to do in a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from coordinator.config import RunConfig
from edgepfl import wire
from edgepfl.algorithms import Algorithm
from edgepfl.errors import RunError, WireError
from edgepfl.plan import Plan
from edgepfl.seeds import derive, generator
from edgepfl.wire import BlobRef, Member, Task

HEARTBEATS = 4  # signs of life in a lease
_MOST_ROUND = 1 << 31


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


def check_size(task: Task, goal: int) -> None:
    """Refuse a run whose tasks do not fit into a message.

    Args:
        task: any of the run.
        goal: how many members a cohort may have.

    Raises:
        RunError: with so many members, their names as long as can be, it does not fit.
    """
    cohort = tuple(Member(f"{k:036}", _MOST_ROUND) for k in range(goal))
    try:
        wire.encode(msgspec.structs.replace(task, round=_MOST_ROUND, cohort=cohort))
    except WireError as error:
        raise RunError(
            f"its tasks would not fit into a message ({error.what})",
            where=task.run,
            remedy="Select fewer devices, or export a smaller model",
        ) from error
