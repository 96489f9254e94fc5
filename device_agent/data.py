"""A device's own examples, and the minibatches it trains on.

Each epoch is a fresh permutation of all training examples.  The last minibatch of an epoch may be short: it is filled
with further rows of weight 0, so that its size stays static, nothing is dropped and nothing counts twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from device_agent.runners import Array
from edgepfl.errors import DataError
from edgepfl.plan import BatchPlan, ExampleSpec, Plan
from edgepfl.seeds import generator

_NUMERIC = "biuf"  # NumPy's kinds: boolean, integers, floating


Inputs: TypeAlias = tuple[Array, ...]
"""Each of a model's inputs, one example a row."""


@dataclass(frozen=True, eq=False)
class Examples:
    """A device's data, one example a row.

    Attributes:
        train_x: inputs, ``(n, ...)``; a tuple of them where the model has several.
        train_y: targets, ``(n, ...)``; labels are 0, 1, ...
        test_x: inputs that are never trained on, ``(m, ...)``, or a tuple of such; m may be 0.
        test_y: their targets, ``(m, ...)``.

    Raises:
        DataError: not numeric, not finite, numbers of rows that differ, or no training example.
    """

    train_x: Array | Inputs
    train_y: Array
    test_x: Array | Inputs
    test_y: Array

    def __post_init__(self) -> None:
        for part, inputs, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            _check_array(f"{part}_y", y)
            for name, x in named(f"{part}_x", inputs):
                _check_array(name, x)
                if len(x) != len(y):
                    raise DataError(f"{name} has {len(x)} rows and {part}_y has {len(y)}", where="data")
        if len(self.train_y) == 0:
            raise DataError("there is no training example", where="data", remedy="Collect data before joining a fleet")

    @property
    def count(self) -> int:
        """How many examples there are to train on."""
        return len(self.train_y)

    def of_round(self, round_: int) -> Examples:  # noqa: ARG002  data that change with the round override this
        """What the device trains and is tested on in a round of a run; always as many examples."""
        return self

    def fit(self, plan: Plan) -> Examples:
        """These examples in the shapes and dtypes of the plan's minibatches.

        Flat rows are folded into the shape of an input of the same size.

        Raises:
            DataError: they cannot have them, or a label is not one of the model's classes.
        """
        batch = plan.batch
        known: tuple[BatchPlan, Examples] | None = self.__dict__.get("_fitted")
        if known is not None and known[0] is batch:
            return known[1]
        fitted = Examples(
            _fit_inputs("train_x", self.train_x, batch),
            _fit("train_y", self.train_y, batch.y),
            _fit_inputs("test_x", self.test_x, batch),
            _fit("test_y", self.test_y, batch.y),
        )
        if self._lends_to(fitted):  # else it would be the data a second time
            object.__setattr__(self, "_fitted", (batch, fitted))
        return fitted

    def _lends_to(self, fitted: Examples) -> bool:
        """Whether the inputs, which are most of the data, are these in another shape at most."""
        pairs = ((self.train_x, fitted.train_x), (self.test_x, fitted.test_x))
        return all(
            np.may_share_memory(mine, theirs)
            for before, after in pairs
            for (_, mine), (_, theirs) in zip(named("", before), named("", after), strict=True)
        )


def named(name: str, inputs: Array | Inputs) -> Iterator[tuple[str, Array]]:
    """Each input with what to call it: its own name with a number where there are several."""
    if not isinstance(inputs, tuple):
        yield name, inputs
    elif len(inputs) == 1:
        yield name, inputs[0]
    else:
        yield from ((f"{name}{i}", x) for i, x in enumerate(inputs))


class Batch(NamedTuple):
    """A minibatch of static size.

    Its arrays are the next one's too: valid until that is asked for.
    """

    x: Inputs
    y: Array
    weight: Array  # float32 (size,): 1, or 0 for a row that only fills


def minibatches(examples: Examples, size: int, steps: int, seed: int, first: int = 0) -> Iterator[Batch]:
    """The first ``steps`` minibatches of the training data; they depend on the data, ``size`` and ``seed`` only.

    Args:
        examples: fit to the plan.
        size: rows of a minibatch.
        steps: how many minibatches.
        seed: of this device in this round.
        first: begin with this one, counted from 0; only the epochs from its own on are drawn.
    """
    n = examples.count
    epoch, skipped = divmod(first, -(-n // size))
    orders = (generator(seed, "minibatch", number).permutation(n) for number in itertools.count(epoch))
    cuts = itertools.chain.from_iterable(_cut(order, size) for order in orders)
    return _gather(examples.train_x, examples.train_y, itertools.islice(cuts, skipped, skipped + steps - first), size)


def held_out(examples: Examples, size: int) -> Iterator[Batch]:
    """The test data once, in order."""
    order = np.arange(len(examples.test_y))
    return _gather(examples.test_x, examples.test_y, _cut(order, size), size)


def _cut(order: Array, size: int) -> Iterator[tuple[Array, int]]:
    """The rows of each minibatch, and how many of them count."""
    whole, rest = divmod(len(order), size)
    yield from zip(order[: whole * size].reshape(whole, size), itertools.repeat(size))
    if rest:
        # A short one is filled with its own rows, again and again: zeros could make a graph give NaN.
        yield order[whole * size :].take(np.arange(size), mode="wrap"), rest


def _gather(x: Array | Inputs, y: Array, cuts: Iterator[tuple[Array, int]], size: int) -> Iterator[Batch]:
    sources = (*x, y) if isinstance(x, tuple) else (x, y)
    *inputs, targets = [np.empty((size, *source.shape[1:]), source.dtype) for source in sources]
    batch = Batch(tuple(inputs), targets, np.ones(size, np.float32))
    pairs = list(zip(sources, (*inputs, targets), strict=True))
    before = size
    for rows, count in cuts:
        for source, gathered in pairs:
            source.take(rows, 0, gathered, "clip")  # "raise" would gather into a buffer first
        if count != before:
            batch.weight[:count], batch.weight[count:] = 1, 0
            before = count
        yield batch


def _check_array(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMERIC or array.ndim == 0:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"it is {kind}, not an array of numbers with one row an example", where=name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DataError(f"row {row} has a value that is not finite", where=name, remedy="Drop or repair such rows")


def _fit_inputs(name: str, inputs: Array | Inputs, batch: BatchPlan) -> Inputs:
    found = list(named(name, inputs))
    if len(found) != len(batch.x):
        raise DataError(
            f"there are {len(found)} inputs, and the model takes {len(batch.x)}",
            where=name,
            remedy="Give a tuple of arrays, or in a file the arrays train_x0, train_x1, ...",
        )
    return tuple(_fit(part, x, spec) for (part, x), spec in zip(found, batch.x, strict=True))


def _fit(name: str, array: Array, spec: ExampleSpec) -> Array:
    flat = array.ndim <= 2 and math.prod(array.shape[1:]) == spec.size  # noqa: PLR2004  a row of numbers, or a number
    if array.shape[1:] != spec.shape and not flat:
        raise DataError(
            f"an example is {list(array.shape[1:])}, and the model takes {list(spec.shape)}",
            where=name,
            remedy="Prepare the data as the run's model expects it",
        )
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is found below, or is infinite by now
        fitted = np.ascontiguousarray(array.reshape(len(array), *spec.shape), spec.dtype)
    if spec.dtype == "int64":
        if array.dtype.kind == "f" and not np.array_equal(fitted, array.reshape(fitted.shape)):
            raise DataError("a value is not a whole number", where=name)
        _check_range(name, fitted, spec.high)
    return fitted


def _check_range(name: str, values: Array, high: int) -> None:
    if values.size == 0:
        return
    least, most = int(values.min()), int(values.max())
    if least < 0 or (high and most >= high):
        bound = f" to {high - 1}" if high else ""
        raise DataError(f"values run from {least} to {most}, and the model's from 0{bound}", where=name)
