"""An oracle of buffered training in NumPy: the server's model from what the journal says of each report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from _scripted import upload_of

from coordinator.journal import Result
from edgepfl import codec
from edgepfl.bundle import Bundle
from edgepfl.plan import Role
from edgepfl.seeds import derive
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef, Task

EXAMPLES = 5
"""What every scripted device says it has."""


def models(
    bundle: Bundle, results: Sequence[Result], seed: int, weigh: Callable[[int], float] = lambda _: 1.0
) -> list[Tree]:
    """The model after each update of FedAvg, float32, the initial one first.

    ``w_n = w_(n-1) + sum_k n_k w(n - b_k) D_k / sum_k n_k``, where ``D_k`` was made from ``w_(b_k - 1)``: FedBuff's
    algorithm 1 with examples for weights.
    """
    found = [bundle.model]
    for number in sorted({result.round for result in results if result.steps}):
        counted = sorted((r for r in results if r.round == number), key=lambda result: result.device)
        examples = sum(result.examples for result in counted)
        parts = [
            change_of(bundle, result.device, result.base, seed, found[result.base - 1]).map(np.float64)
            * (result.examples * weigh(number - result.base))
            for result in counted
        ]
        mean = sum(parts[1:], start=parts[0]) / examples
        found.append(found[-1] + mean.map(np.float32))
    return found


def change_of(bundle: Bundle, device: str, base: int, seed: int, model: Tree) -> Tree:
    """What a scripted device uploads in a round whose task gave it this model."""
    task = Task(
        run="run",
        round=base,
        attempt=0,
        cohort=(),
        bundle=BlobRef("0" * 64, 0),
        download=BlobRef(hashlib.sha256(codec.encode({"w": model})).hexdigest(), 0),
        hyper={},
        steps=1,
        seed=derive(seed, "round", base),
        evaluate=False,
        tune_steps=0,
        final=False,
        deadline=1.0,
        heartbeat=1.0,
    )
    specs = {name: slot.tensors for name, slot in bundle.plan.by_role(Role.UP).items()}
    return codec.decode(upload_of(bundle.plan, task, device), specs)["delta"]
