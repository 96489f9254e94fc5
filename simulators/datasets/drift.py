"""Concept drift: a device's data as a function of the round.

The kinds are those of Gama et al. 2014, "A survey on concept drift adaptation" (doi 10.1145/2523813), section 2: an
*abrupt* change from one concept to another, a *gradual* one in which ever more examples are of the new concept, and a
*recurring* one in which both take turns.  The new concept differs in its labels (``P(y|x)``: real drift) or in its
inputs (``P(x)``: virtual drift).

Everything is a pure function of device, round and seed: a device that is started anew, trains a round again or runs in
another engine has the same examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples, Inputs
from device_agent.runners import Array
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan
from edgepfl.seeds import generator
from simulators.text_options import keyed, record


class Course(StrEnum):
    """How the new concept comes."""

    ABRUPT = "abrupt"
    GRADUAL = "gradual"
    RECURRING = "recurring"


class What(StrEnum):
    """What is new about it."""

    LABELS = "labels"
    FEATURES = "features"


@dataclass(frozen=True)
class Drift:
    """How a fleet's data change with the round.

    Attributes:
        what: labels (each class becomes the one ``by`` places on) or features (every input is shifted by ``strength``
            of its own standard deviation, in a direction of its device's own).
        course: abrupt, gradual or recurring.
        start: the first round in which anything is new.
        length: rounds that a gradual change takes, or that each concept lasts of recurring ones.
        share: the part of the devices whose data change at all.
        by: classes that labels move on.
        strength: of a shift of features, in standard deviations.
    """

    what: What = What.LABELS
    course: Course = Course.ABRUPT
    start: int = 10
    length: int = 10
    share: float = 1.0
    by: int = 1
    strength: float = 1.0

    def __post_init__(self) -> None:
        if min(self.start, self.length, self.by) < 1 or not 0 < self.share <= 1 or not self.strength > 0:
            raise ConfigError(
                f"start {self.start}, length {self.length}, by {self.by}, share {self.share}, strength {self.strength}",
                where="data drift",
                remedy="Give rounds and classes of at least 1, a share above 0 and at most 1, a strength above 0",
            )

    def level(self, round_: int) -> float:
        """The part of a drifting device's examples that is of the new concept in a round; 0 to 1."""
        since = round_ - self.start
        if since < 0:
            return 0.0
        match self.course:
            case Course.ABRUPT:
                return 1.0
            case Course.GRADUAL:
                return min((since + 1) / self.length, 1.0)
            case Course.RECURRING:
                return float(since // self.length % 2 == 0)

    @classmethod
    def parse(cls, text: str) -> Drift:
        """``WHAT:COURSE[,KEY=VALUE...]``, such as ``labels:gradual,start=20,length=30``.

        Raises:
            ConfigError: it is something else.
        """
        name, options = keyed(text, where="data drift")
        what, _, course = name.partition(":")
        return record(cls, {"what": what, "course": course or Course.ABRUPT, **options}, where=f"data drift {text}")


@dataclass(frozen=True, eq=False)
class Drifting(Examples):
    """Examples that are others in each round; as they stand they are those of round 0.

    Attributes:
        change: the examples of a round.
    """

    change: Callable[[int], Examples]

    @classmethod
    def of(cls, first: Examples, change: Callable[[int], Examples]) -> Drifting:
        """Examples from those of round 0; ``change`` keeps their numbers of rows."""
        return cls(first.train_x, first.train_y, first.test_x, first.test_y, change)

    def of_round(self, round_: int) -> Examples:
        """What the device trains and is tested on in a round."""
        return self.change(round_)

    def fit(self, plan: Plan) -> Drifting:
        """As of every examples, in each round."""
        return Drifting.of(super().fit(plan), lambda round_: self.change(round_).fit(plan))


def drifts(drift: Drift, number: int, seed: int) -> bool:
    """Whether the data of a device, counted from 0, change at all."""
    return bool(generator(seed, "drift", "who", number).random() < drift.share)


def drifting(drift: Drift, examples: Examples, classes: int, number: int, round_: int, seed: int) -> Examples:
    """A device's examples in a round: a pure function of all that is given.

    An example that is of the new concept at some level is so at every higher level, so that a gradual change never
    takes anything back.

    Args:
        drift: how the data change.
        examples: those of round 0.
        classes: how many there are.
        number: of the device, counted from 0.
        round_: of the run, counted from 1.
        seed: the same seed gives the same examples.

    Raises:
        ConfigError: these examples cannot drift so.
    """
    level = drift.level(round_)
    if level <= 0 or not drifts(drift, number, seed):
        return examples
    train, test = (_changed(len(y), level, number, part, seed) for part, y in _parts(examples))
    if drift.what is What.LABELS:
        moved = [_moved(y, rows, drift.by, classes) for y, rows in ((examples.train_y, train), (examples.test_y, test))]
        return replace(_plain(examples), train_y=moved[0], test_y=moved[1])
    pairs = list(zip(_inputs(examples.train_x), _inputs(examples.test_x), strict=True))
    shifts = [_shift(x, drift.strength, number, index, seed) for index, (x, _) in enumerate(pairs)]
    train_x = tuple(_shifted(x, train, shift) for (x, _), shift in zip(pairs, shifts, strict=True))
    test_x = tuple(_shifted(x, test, shift) for (_, x), shift in zip(pairs, shifts, strict=True))
    if not isinstance(examples.train_x, tuple):
        return Examples(train_x[0], examples.train_y, test_x[0], examples.test_y)
    return Examples(train_x, examples.train_y, test_x, examples.test_y)


def _plain(examples: Examples) -> Examples:
    return Examples(examples.train_x, examples.train_y, examples.test_x, examples.test_y)


def _parts(examples: Examples) -> tuple[tuple[str, Array], tuple[str, Array]]:
    return ("train", examples.train_y), ("test", examples.test_y)


def _inputs(x: Array | Inputs) -> Inputs:
    return x if isinstance(x, tuple) else (x,)


def _changed(count: int, level: float, number: int, part: str, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows are of the new concept."""
    return generator(seed, "drift", "rows", number, part).random(count) < level


def _moved(y: Array, rows: npt.NDArray[np.bool_], by: int, classes: int) -> Array:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ConfigError(
            f"targets {y.dtype} of shape {list(y.shape)} are no labels",
            where="data drift",
            remedy="Let the features drift instead",
        )
    return np.where(rows, (y + by) % classes, y).astype(y.dtype)


def _shift(x: Array, strength: float, number: int, index: int, seed: int) -> npt.NDArray[np.float64]:
    """What is added to an input, one number for each of its channels (axis 1)."""
    if x.dtype.kind != "f" or x.ndim < 2:  # noqa: PLR2004  rows and features
        raise ConfigError(
            f"inputs {x.dtype} of shape {list(x.shape)} cannot be shifted",
            where="data drift",
            remedy="Let the labels drift instead",
        )
    deviation = x.std(axis=tuple(axis for axis in range(x.ndim) if axis != 1), dtype=np.float64)
    signs = generator(seed, "drift", "direction", number, index).choice((-1.0, 1.0), len(deviation))
    return np.asarray(strength * deviation * signs)


def _shifted(x: Array, rows: npt.NDArray[np.bool_], shift: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    shaped = shift.reshape(-1, *(1,) * (x.ndim - 2))
    return np.where(rows.reshape(-1, *(1,) * (x.ndim - 1)), x + shaped, x).astype(x.dtype)
