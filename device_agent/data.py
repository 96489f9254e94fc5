"""A device's own examples, and the minibatches it trains on.

Each epoch is a fresh permutation of all training examples.  The last minibatch of an epoch may be short: it is filled
with further rows of weight 0, so that its size stays static, nothing is dropped and nothing counts twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from device_agent.runners import Array
from edgepfl.errors import DataError
from edgepfl.plan import Entry, Plan, TensorSpec
from edgepfl.seeds import generator

_NUMERIC = "biuf"  # NumPy's kinds: boolean, integers, floating


@dataclass(frozen=True, eq=False)
class Examples:
    """A device's data, one example a row.

    Attributes:
        train_x: inputs, ``(n, ...)``.
        train_y: targets, ``(n, ...)``; labels are 0, 1, ...
        test_x: inputs that are never trained on, ``(m, ...)``; m may be 0.
        test_y: their targets, ``(m, ...)``.

    Raises:
        DataError: not numeric, not finite, numbers of rows that differ, or no training example.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_array(field.name, getattr(self, field.name))
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise DataError(f"{part}_x has {len(x)} rows and {part}_y has {len(y)}", where="data")
        if len(self.train_x) == 0:
            raise DataError("there is no training example", where="data", remedy="Collect data before joining a fleet")

    def fit(self, plan: Plan) -> Examples:
        """These examples in the shapes and dtypes of the plan's minibatches.

        Flat rows are folded into the shape of an input of the same size.

        Raises:
            DataError: they cannot have them, or a label is not one of the model's classes.
        """
        x, y = plan.batch.x, plan.batch.y
        fitted = Examples(
            _fit("train_x", self.train_x, x),
            _fit("train_y", self.train_y, y),
            _fit("test_x", self.test_x, x),
            _fit("test_y", self.test_y, y),
        )
        if y.dtype == "int64":
            most = _classes(plan)
            _check_labels("train_y", fitted.train_y, most)
            _check_labels("test_y", fitted.test_y, most)
        return fitted


class Batch(NamedTuple):
    """A minibatch of static size.

    Its arrays are used again for the next one: valid until that is asked for.
    """

    x: Array
    y: Array
    weight: Array  # float32 (size,): 1, or 0 for a row that only fills


def minibatches(examples: Examples, size: int, steps: int, seed: int) -> Iterator[Batch]:
    """The first ``steps`` minibatches of the training data; they depend on the data, ``size`` and ``seed`` only.

    Args:
        examples: fit to the plan.
        size: rows of a minibatch.
        steps: how many minibatches.
        seed: of this device in this round.
    """
    n = len(examples.train_x)
    orders = (generator(seed, "minibatch", epoch).permutation(n) for epoch in itertools.count())
    batches = (batch for order in orders for batch in _cut(order, size))
    return _gather(examples.train_x, examples.train_y, itertools.islice(batches, steps), size)


def held_out(examples: Examples, size: int) -> Iterator[Batch]:
    """The test data once, in order."""
    order = np.arange(len(examples.test_x))
    return _gather(examples.test_x, examples.test_y, _cut(order, size), size)


def _cut(order: Array, size: int) -> Iterator[tuple[Array, int]]:
    """The rows of each minibatch, and how many of them count."""
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield np.resize(rows, size), len(rows)  # filled with its own rows: zeros could make a graph give NaN


def _gather(x: Array, y: Array, cuts: Iterator[tuple[Array, int]], size: int) -> Iterator[Batch]:
    batch = Batch(
        np.empty((size, *x.shape[1:]), x.dtype),
        np.empty((size, *y.shape[1:]), y.dtype),
        np.empty(size, np.float32),
    )
    for rows, count in cuts:
        np.take(x, rows, axis=0, out=batch.x, mode="clip")  # "raise" would gather into a buffer first
        np.take(y, rows, axis=0, out=batch.y, mode="clip")
        batch.weight[:count] = 1
        batch.weight[count:] = 0
        yield batch


def _check_array(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _NUMERIC or array.ndim == 0:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"it is {kind}, not an array of numbers with one row an example", where=name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DataError(f"row {row} has a value that is not finite", where=name, remedy="Drop or repair such rows")


def _fit(name: str, array: Array, spec: TensorSpec) -> Array:
    foldable = array.ndim == 2 and array.shape[1] == spec.size  # noqa: PLR2004  flat rows
    if array.shape[1:] != spec.shape and not foldable:
        raise DataError(
            f"an example is {list(array.shape[1:])}, and the model takes {list(spec.shape)}",
            where=name,
            remedy="Prepare the data as the run's model expects it",
        )
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is found below, or is infinite by now
        fitted = np.ascontiguousarray(array.reshape(len(array), *spec.shape), spec.dtype)
    if spec.dtype == "int64" and array.dtype.kind == "f" and not np.array_equal(fitted, array.reshape(fitted.shape)):
        raise DataError("a value is not a whole number", where=name)
    return fitted


def _classes(plan: Plan) -> int | None:
    predict = plan.graphs.get(Entry.PREDICT)
    return predict.outputs[0].spec.shape[-1] if predict is not None and predict.outputs[0].spec.shape else None


def _check_labels(name: str, labels: Array, classes: int | None) -> None:
    if len(labels) == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        most = "" if classes is None else f" to {classes - 1}"
        raise DataError(f"labels run from {low} to {high}, and the model's from 0{most}", where=name)
