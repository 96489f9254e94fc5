"""What a late report weighs.

Xie et al. 2019, "Asynchronous federated optimization", section 5.2; with ``s`` the updates that the server made between
handing out a device's task and the one its report is in::

    constant          w(s) = 1
    polynomial:a      w(s) = (1 + s)^-a
    hinge:a,b         w(s) = 1 for s <= b, else 1 / (a (s - b) + 1)

Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation", take ``polynomial:0.5``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from edgepfl.errors import ConfigError


class Kind(StrEnum):
    """The weightings there are."""

    CONSTANT = "constant"
    POLYNOMIAL = "polynomial"
    HINGE = "hinge"


_NUMBERS = {Kind.CONSTANT: "", Kind.POLYNOMIAL: "a", Kind.HINGE: "ab"}


@dataclass(frozen=True)
class Weighting:
    """One of :class:`Kind`, with its numbers.

    Attributes:
        kind: which.
        a: how fast a weight falls, at least 0.
        b: of hinge, the updates up to which it does not, at least 0.
    """

    kind: Kind
    a: float = 0.0
    b: float = 0.0

    def __call__(self, staleness: int) -> float:
        """The weight of a report that is so many updates late: above 0 and at most 1, and 1 for none."""
        match self.kind:
            case Kind.CONSTANT:
                return 1.0
            case Kind.POLYNOMIAL:
                return math.pow(1.0 + staleness, -self.a)
            case Kind.HINGE:
                return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


def weighting_of(words: str) -> Weighting:
    """The weighting that a run names.

    Raises:
        ConfigError: there is no such, or it lacks a number.
    """
    name, _, rest = words.partition(":")
    if name not in set(Kind):
        raise _wrong(words, f"there is no {name[:40]!r}")
    kind = Kind(name)
    letters, given = _NUMBERS[kind], rest.split(",") if rest else []
    if len(given) != len(letters):
        raise _wrong(words, f"{kind} takes {len(letters) or 'no'} number{'' if len(letters) == 1 else 's'}")
    return Weighting(kind, *(_number(words, letter, text) for letter, text in zip(letters, given, strict=True)))


def _number(words: str, letter: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise _wrong(words, f"{letter} = {text[:40]!r} is no number") from error
    if not 0 <= value <= 1e6:  # noqa: PLR2004  a weight below any float32 would only look like one; also catches nan
        raise _wrong(words, f"{letter} must be from 0 to 1e6")
    return value


def _wrong(words: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{words[:80]!r} will not do: {reason}",
        where="staleness",
        remedy="Choose constant, polynomial:A such as polynomial:0.5, or hinge:A,B such as hinge:10,4",
    )
