"""From a round's result to the bytes that are sent and kept, by the run's codec.

What a codec leaves out is kept as *residuals*, KEEP slots of the agent's own: they are settled or dropped with the
others, and never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from device_agent.interpreter import RoundResult
from edgepfl import codec
from edgepfl.coding import Coding, Encoded
from edgepfl.errors import PlanError
from edgepfl.plan import Amend, Plan, Role
from edgepfl.tree import Tensor, Tree, Trees


class Encoder(Protocol):
    """Makes bytes of an upload: a run's codec, or its secure aggregation."""

    def encode(self, upload: Trees, seed: int, residual: Trees) -> Encoded:
        """An upload's bytes, and what the coordinator makes of them: see :meth:`edgepfl.coding.Coding.encode`."""
        ...


@dataclass(frozen=True)
class Kept:
    """What a device keeps.

    Attributes:
        slots: the plan's KEEP slots; None before the device's first accepted round.
        residual: what of its uploads was not sent yet, by the codec's own slots.
    """

    slots: Trees | None
    residual: Trees


@dataclass(frozen=True)
class Sent:
    """What a round's training comes to.

    Attributes:
        upload: the UP slots' bytes.
        decoded: what the coordinator makes of them.
        keep: the KEEP slots and the residuals.
    """

    upload: bytes
    decoded: Trees
    keep: Trees


def taken(data: bytes | None, coding: Coding, plan: Plan) -> Kept:
    """What is in the bytes of the settled KEEP slots.

    Raises:
        CodecError: not what the plan and the codec declare.
    """
    if data is None:
        return Kept(None, coding.none_left())
    own = {name: slot.tensors for name, slot in plan.by_role(Role.KEEP).items()}
    found = codec.decode(data, {**own, **coding.residuals}, where="kept slots")
    return Kept({name: found[name] for name in own}, {name: found[name] for name in coding.residuals})


def sent(result: RoundResult, coding: Encoder, amends: Sequence[Amend], residual: Trees, seed: int) -> Sent:
    """What a round's training comes to.

    Args:
        result: of the training.
        coding: the run's codec, or its secure aggregation.
        amends: the KEEP slots that follow what the coordinator gets.
        residual: what is still to be sent.
        seed: of this device in this round.

    Raises:
        PlanError: an amend names a slot that is not there, or two of different tensors.
    """
    encoded = coding.encode(result.upload, seed, residual)
    keep = amended(result.keep, amends, (result.upload, encoded.decoded), result.steps)
    return Sent(encoded.data, encoded.decoded, {**keep, **encoded.residual})


def amended(keep: Trees, amends: Sequence[Amend], uploads: tuple[Trees, Trees], steps: int) -> Trees:
    """The KEEP slots that follow from the upload as it arrived: see :class:`~edgepfl.plan.Amend`.

    Args:
        keep: as the graphs left them.
        amends: which of them follow.
        uploads: as it was, and as it arrived.
        steps: minibatch steps taken.

    Raises:
        PlanError: as :func:`sent`.
    """
    before, after = uploads
    found: dict[str, Tree] = dict(keep)
    for each in amends:
        slot, was, came = found.get(each.keep), before.get(each.up), after.get(each.up)
        if slot is None or was is None or came is None or _shapes(slot) != _shapes(was):
            raise PlanError(
                f"KEEP slot {each.keep!r} cannot follow UP slot {each.up!r}",
                where="task",
                remedy="Update the older side",
            )
        factor = each.factor / max(steps, 1) if each.per_step else each.factor
        found[each.keep] = Tree({name: _moved(x, factor, was[name], came[name]) for name, x in slot.items()})
    return found


def _shapes(tree: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(tensor) for name, tensor in tree.items()}


def _moved(x: Tensor, factor: float, was: Tensor, came: Tensor) -> Tensor:
    """``x + factor (came - was)``, rounded once: a copy of what was uploaded becomes one of what arrived."""
    wide = np.float64
    return (np.asarray(x, wide) + factor * (np.asarray(came, wide) - np.asarray(was, wide))).astype(x.dtype)
