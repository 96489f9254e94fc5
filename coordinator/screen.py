"""Looking at an upload before it may touch the model: declared tensors, finite, not enormous."""

from __future__ import annotations

import math

import numpy as np

from edgepfl import codec
from edgepfl.errors import CodecError
from edgepfl.plan import Plan, Role
from edgepfl.tree import Trees


def screen(data: bytes, plan: Plan, *, device: str, max_norm: float) -> Trees:
    """The UP slots of an upload.

    Args:
        data: the bytes, by :mod:`edgepfl.codec`.
        plan: what was declared.
        device: who sent it, for the error.
        max_norm: the greatest Euclidean norm that a slot may have.

    Raises:
        CodecError: not the declared tensors, not finite, or above the norm.
    """
    where = f"upload of {device}"
    trees = codec.decode(data, {name: slot.tensors for name, slot in plan.by_role(Role.UP).items()}, where=where)
    for slot, tree in trees.items():
        square = 0.0
        for name, tensor in tree.items():
            if not np.isfinite(tensor).all():
                raise CodecError(f"{slot}/{name} is not finite", where=where)
            flat = tensor.ravel().astype(np.float64)
            square += float(flat @ flat)
        if math.sqrt(square) > max_norm:
            raise CodecError(f"{slot} has norm {math.sqrt(square):.3g}, at most {max_norm:g} is allowed", where=where)
    return trees
