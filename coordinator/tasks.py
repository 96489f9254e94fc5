"""What a cohort is told to do in a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np

from coordinator.config import RunConfig
from coordinator.privacy.agreement import terms_of as private
from coordinator.secagg.agreement import terms_of
from edgepfl import codec, wire
from edgepfl.algorithms import Algorithm
from edgepfl.bus.chunks import digests
from edgepfl.errors import RunError, WireError
from edgepfl.plan import Plan, Role
from edgepfl.seeds import derive, generator
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef, Member, Task

HEARTBEATS = 4  # signs of life in a lease
_MOST_ROUND = 1 << 31
_NAME = 45  # bytes of a member, at most
_REST = 8 << 10  # bytes of all else in a task: hyperparameters, conditions


def is_final(config: RunConfig, number: int) -> bool:
    """Whether a round is the last one, which trains nothing and evaluates the result."""
    return number > config.rounds


def steps_of(config: RunConfig, algorithm: Algorithm, number: int) -> int:
    """How many minibatch steps a round has, 0 where it only evaluates.

    Args:
        config: the run's settings.
        algorithm: that of this round.
        number: of the round.
    """
    if is_final(config, number):
        return 0
    return max(algorithm.local_steps(config.steps, generator(config.seed, "coins", number)), 1)


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
    settings: Mapping[str, float | str] = MappingProxyType({}),
    grid: int = 0,
    clip: float = 0.0,
) -> Task:
    """The task of one attempt at one round, for these members of its cohort.

    Args:
        run: its id.
        config: its settings.
        algorithm: that of this round: :func:`coordinator.updater.of_round`.
        plan: of the bundle.
        number: of the round.
        attempt: at the round.
        cohort: whom it is for.
        accepted: the last round of each device that counts.
        bundle: plan and graphs.
        download: the DOWN slots of these members.
        settings: the server's hyperparameters that hubs must know.
        grid: where the sums of hubs lie.
        clip: of a private run's contributions in this round.
    """
    members = tuple(Member(device, accepted.get(device, -1)) for device in sorted(cohort))
    final = is_final(config, number)
    told = config.privacy is None or config.privacy.metrics
    due = told and config.evaluate_every > 0 and (number - 1) % config.evaluate_every == 0
    return Task(
        run=run,
        round=number,
        attempt=attempt,
        cohort=members,
        bundle=bundle,
        download=_beside(download, len(members), bundle),
        hyper={name: float(getattr(algorithm, name)) for name in plan.hyper},
        steps=steps_of(config, algorithm, number),
        seed=derive(config.seed, "round", number),
        evaluate=final or due,
        tune_steps=config.tune_steps,
        final=final,
        deadline=config.deadline,
        heartbeat=config.lease / HEARTBEATS,
        patience=config.patience,
        settings=dict(settings),
        grid=grid,
        codec=config.codec,
        conditions=config.conditions,
        amends=algorithm.amended if config.codec or config.secagg else (),
        secagg=None if final else terms_of(algorithm, plan, config),
        privacy=private(config.privacy, clip),
    )


def room_beside(members: int, bundle: BlobRef) -> int:
    """Bytes of the longest download that rides in a task, beside so many names and the digests of the bundle."""
    return min(wire.INLINE_LIMIT, wire.MESSAGE_LIMIT - _REST - _NAME * members - len(bundle.chunks))


def _beside(download: BlobRef, members: int, bundle: BlobRef) -> BlobRef:
    """A download's reference as it goes into a task: without its bytes, if there is no room for them."""
    if len(download.inline) <= max(room_beside(members, bundle), 0):
        return download
    return BlobRef(download.sha256, download.size, chunks=digests(download.inline))


def blank_download(plan: Plan) -> BlobRef:
    """A reference as long as that of every download of a plan: their bytes differ, their number does not."""
    blank = {
        name: Tree({tensor: np.zeros(spec.shape, spec.dtype) for tensor, spec in slot.tensors.items()})
        for name, slot in plan.by_role(Role.DOWN).items()
    }
    data = codec.encode(blank)
    inline = data if len(data) <= wire.INLINE_LIMIT else b""
    return BlobRef("0" * 64, len(data), inline, b"" if inline else digests(data))


def check_size(task: Task, goal: int) -> None:
    """Refuse a run whose tasks do not fit into a message.

    Args:
        task: any of the run.
        goal: how many members a cohort may have.

    Raises:
        RunError: with so many members, their names as long as can be, it does not fit.
    """
    cohort = tuple(Member(f"{k:036}", _MOST_ROUND) for k in range(goal))
    download = _beside(task.download, goal, task.bundle)
    try:
        wire.encode(msgspec.structs.replace(task, round=_MOST_ROUND, cohort=cohort, download=download))
    except WireError as error:
        raise RunError(
            f"its tasks would not fit into a message ({error.what})",
            where=task.run,
            remedy="Select fewer devices, or export a smaller model",
        ) from error
