"""Which rank has which columns, and trees cut into shards and joined again.

A slot that is shaped like a model is cut: of a tensor with ``n`` elements, flat, rank ``r`` of ``R`` has the elements
``n r // R`` to ``n (r + 1) // R``.  A slot of named dimensions, or of a number, is whole in every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
import torch

from coordinator import updater
from coordinator.optimisers import PREFIX
from coordinator.pieces import Blobs, Reader, Shard
from edgepfl.algorithms import Algorithm
from edgepfl.errors import PlanError, RunError
from edgepfl.plan import Plan, Role, Shape, TensorSpec
from edgepfl.tree import Tensor, Tree, Trees

_CUT = (Shape.PARAMS, Shape.SHARED, Shape.PERSONAL)


def span(size: int, rank: int, ranks: int) -> slice:
    """The elements of a flat tensor that a rank has."""
    return slice(size * rank // ranks, size * (rank + 1) // ranks)


def cut(tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """A rank's elements of a tensor, flat: a view where the tensor allows it."""
    flat = tensor.reshape(-1)
    return flat[span(len(flat), rank, ranks)]


def cut_slots(algorithm: Algorithm) -> frozenset[str]:
    """The slots of an algorithm that are cut."""
    return frozenset(name for name, slot in algorithm.declared().items() if slot.shape in _CUT)


class Places(msgspec.Struct, frozen=True):
    """What of an algorithm's first state, and of an optimiser's, is cut and what is whole, as ``(slot, name)``."""

    cut: frozenset[tuple[str, str]]
    whole: frozenset[tuple[str, str]]


def places(algorithm: Algorithm, plan: Plan) -> Places:
    """Where the columns of the first state are, found by making it for models of two sizes."""
    small, large = (updater.first_state(algorithm, *_resized(algorithm, plan, size)) for size in (2, 3))
    keys = [(slot, name) for slot, tree in small.items() for name in tree]
    same = frozenset(key for key in keys if small[key[0]][key[1]].shape == large[key[0]][key[1]].shape)
    flat = frozenset(key for key in keys if small[key[0]][key[1]].shape == (2,) and large[key[0]][key[1]].shape == (3,))
    for slot, declared in plan.by_role(Role.UP).items():  # an optimiser's memory has the columns of what it steps by
        memory = {(f"{PREFIX}{part}.{slot}", name) for part in "mv" for name in declared.tensors}
        flat, same = (flat | memory, same) if slot in cut_slots(algorithm) else (flat, same | memory)
    return Places(flat, same)


def placed(found: Places, key: tuple[str, str], tensors: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
    """A rank's part of a tensor that was divided otherwise.

    Args:
        found: of the algorithm.
        key: its slot and its name.
        tensors: what each rank had before; a single one is all of it, flat or not.
        rank: this one.
        ranks: how many there are now.

    Raises:
        RunError: nobody knows which columns it has.
    """
    if key in found.cut:
        return cut(tensors[0] if len(tensors) == 1 else torch.cat(list(tensors)), rank, ranks)
    if key in found.whole or not tensors[0].ndim:
        return tensors[0]
    was = len(tensors)
    raise RunError(
        f"{'/'.join(key)} of {was} ranks cannot be divided among {ranks}",
        where="aggregator",
        remedy="Let the run end without [aggregator]" if was == 1 else f"Start {was} processes",
    )


def own_columns(specs: Mapping[str, TensorSpec], rank: int, ranks: int) -> dict[str, int]:
    """How many elements of each tensor a rank has."""
    spans = {name: span(spec.size, rank, ranks) for name, spec in specs.items()}
    return {name: each.stop - each.start for name, each in spans.items()}


def flattened(trees: Trees, plan: Plan, slots: Collection[str], rank: int, ranks: int) -> bytes:
    """A rank's columns of the DOWN slots that are cut, one after the other.

    Raises:
        PlanError: they are not what the algorithm declared.
    """
    parts = []
    for slot, declared in plan.by_role(Role.DOWN).items():
        if slot not in slots:
            continue
        sizes = own_columns(declared.tensors, rank, ranks)
        for name, size in sizes.items():
            column = np.asarray(trees[slot][name], np.dtype(declared.tensors[name].dtype))
            if column.size != size:
                raise PlanError(f"{slot}/{name} has {column.size} of {size} columns", where=plan.algorithm)
            parts.append(column.tobytes())
    return b"".join(parts)


def joined(first: Trees, columns: Sequence[bytes], plan: Plan, slots: Collection[str]) -> Trees:
    """The DOWN slots of one device.

    Args:
        first: as rank 0 has them: what is whole is taken from there.
        columns: every rank's :func:`flattened`.
        plan: of the run.
        slots: that are cut.
    """
    ranks, at, found = len(columns), [0] * len(columns), {}
    for slot, declared in plan.by_role(Role.DOWN).items():
        if slot not in slots:
            found[slot] = first[slot]
            continue
        tensors = {}
        for name, spec in declared.tensors.items():
            flat = np.empty(spec.size, np.dtype(spec.dtype))
            for rank, data in enumerate(columns):
                here = span(spec.size, rank, ranks)
                count = here.stop - here.start
                flat[here] = np.frombuffer(data, flat.dtype, count, at[rank])
                at[rank] += count * flat.itemsize
            tensors[name] = flat.reshape(spec.shape)
        found[slot] = Tree(tensors)
    return found


def _resized(algorithm: Algorithm, plan: Plan, size: int) -> tuple[Plan, Tree]:
    """A plan and a model in which every tensor of a model has so many elements."""
    slots = {
        name: msgspec.structs.replace(slot, tensors=dict.fromkeys(slot.tensors, TensorSpec((size,))))
        if name in cut_slots(algorithm)
        else slot
        for name, slot in plan.slots.items()
    }
    model = Tree(dict.fromkeys(plan.model, np.zeros(size, np.float32)))
    return msgspec.structs.replace(plan, slots=slots), model


def divided(blobs: Blobs, shards: Sequence[Shard], found: Places, rank: int, ranks: int) -> Trees:
    """A rank's shard of a state that was stored as other shards.

    Raises:
        StoreError: one is missing or damaged.
        CodecError: one is not what its pieces say.
        RunError: the state cannot be divided otherwise.
    """
    readers = [Reader(blobs) for _ in shards]
    return {
        slot: Tree(
            {
                name: placed(
                    found,
                    (slot, name),
                    [read.tensor(shard[slot][name]) for read, shard in zip(readers, shards, strict=True)],
                    rank,
                    ranks,
                )
                for name in tensors
            }
        )
        for slot, tensors in shards[0].items()
    }
