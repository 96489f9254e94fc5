"""How good a device's models are on its own test data, before a round's training.

The device prepares as if for a round (``begin``), personalises (``tune``) on training minibatches that the training
does not depend on, and forms the parameters of each model (``models``).  All changes of state are discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from device_agent import memory as memories
from device_agent.data import Examples, held_out
from device_agent.interpreter import Interpreter, Start
from device_agent.memory import Memory
from edgepfl.errors import GraphFailed, PlanError
from edgepfl.plan import Entry, Kind
from edgepfl.seeds import derive
from edgepfl.tree import Tree

_MODEL = Kind.MODEL.value
_WEIGHT = "weight"


@dataclass(frozen=True)
class Evaluation:
    """How good a device's models are on its own test data.

    Attributes:
        metrics: "loss.MODEL", "accuracy.MODEL" or what else the plan's evaluation gives, for each model; empty
            without test data.
        personal: the parameters of the plan's first model, the device's own.
    """

    metrics: Mapping[str, float]
    personal: Tree


def evaluate(
    interpreter: Interpreter,
    start: Start,
    examples: Examples,
    tune_steps: int,
    on_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Begin, tune, and evaluate each model on the test data.

    Args:
        interpreter: of the bundle.
        start: what the device has; unchanged.
        examples: its data, already fit to the plan.
        tune_steps: minibatch steps of ``tune``, where the plan has it.
        on_batch: called after each minibatch; may raise :class:`~device_agent.interpreter.Stopped`.

    Raises:
        PlanError, GraphFailed: as :meth:`Interpreter.train`; also a plan without models to evaluate, or whose
            evaluation does not tell what the examples weigh.
    """
    plan = interpreter.plan
    if not (plan.models and interpreter.has(Entry.MODELS) and interpreter.has(Entry.EVALUATE)):
        raise PlanError("the plan has no models to evaluate", remedy="Export the bundle again")
    if not any(port.kind is Kind.METRIC and port.group == _WEIGHT for port in plan.graphs[Entry.EVALUATE].outputs):
        what = f"it does not tell the sum of the weights, as metric {_WEIGHT!r}"
        raise PlanError(what, where=f"graph {Entry.EVALUATE}", remedy="Export the bundle again")
    memory = interpreter.open(start, examples)
    if interpreter.has(Entry.TUNE):
        tune = interpreter.repeat(Entry.TUNE, memory)
        for _ in interpreter.loop(memory, examples, tune_steps, derive(start.seed, "tune")):
            tune()
            on_batch()
    interpreter.call(Entry.MODELS, memory)
    models = {name: _model(interpreter, memory, name, start.round) for name in plan.models}
    metrics: dict[str, float] = {}
    if len(examples.test_y):
        for name, model in models.items():
            memory |= {(_MODEL, "", tensor): array for tensor, array in model.items()}
            found = _means(interpreter, memory, examples, start.round, on_batch)
            metrics |= {f"{metric}.{name}": value for metric, value in found.items()}
    return Evaluation(metrics, models[plan.models[0]])


def _model(interpreter: Interpreter, memory: Memory, name: str, round_: int) -> Tree:
    try:
        model = Tree({tensor: memory[_MODEL, name, tensor] for tensor in interpreter.plan.predictor})
    except KeyError as error:
        raise GraphFailed(f"it gives no {error.args[0][2]!r} of {name!r}", where=f"graph {Entry.MODELS}") from None
    for tensor, array in model.items():
        if not np.isfinite(array).all():
            raise memories.diverged(f"tensor {tensor!r} of model {name!r} is not finite", round_)
    return model


def _means(
    interpreter: Interpreter,
    memory: Memory,
    examples: Examples,
    round_: int,
    on_batch: Callable[[], None],
) -> dict[str, float]:
    """Each metric of the model in ``memory``, over the test data."""
    sums: dict[str, float] = {}
    call = interpreter.repeat(Entry.EVALUATE, memory)
    for batch in held_out(examples, interpreter.plan.batch.size):
        memories.put(batch, memory)
        call()
        interpreter.add_metrics(Entry.EVALUATE, memory, sums, round_)
        on_batch()
    weight = sums.pop(_WEIGHT)
    if weight <= 0:
        raise GraphFailed(
            f"it gives {weight:g} for the sum of the weights of {len(examples.test_y)} examples",
            where=f"graph {Entry.EVALUATE}",
            remedy="Check this device with edgepfl doctor, and export the bundle again",
        )
    return {name: total / weight for name, total in sums.items()}
