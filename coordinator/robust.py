"""Means that a few wild devices cannot move.

A rule combines what a cohort uploaded of an algorithm's MEAN slots.  All of them are one vector: the slots in the order
of their names, in each the tensors in the order of theirs; so a device is trusted or not as a whole.  ``rows`` is
``(k, d)``, one row a device, ``weights`` ``(k,)`` as the algorithm weights means.  Sums are in float64.  Where the
server is sharded, ``rows`` are some of the columns and ``across`` makes sums over columns whole; each MEAN slot must
then be shaped like a model.

What is protected is every MEAN slot, and what the server makes of it.  A SUM slot, or one that the server rebuilds and
adds up, is not: one device moves it at will, so :func:`check` refuses algorithms that have one.  STACK slots hold each
device's own and are left alone.

Running statistics are among the MEAN slots of models that have them.  The median and the trimmed mean treat each number
for itself, the others take a device's statistics with its weights: Krum one device's, multi-Krum and the geometric
median averages of some devices', clipping shortens their change.  In each case the new variance lies between values
that were there, so it stays positive where the devices' are.  In distances and norms they count as what they are:
a model with statistics far greater than its weights wants the median or the trimmed mean.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from edgepfl.algorithms import Across, Algorithm, Participation, whole
from edgepfl.errors import ConfigError, RunError
from edgepfl.plan import Plan, Reduce, Role
from edgepfl.tree import Trees

_BLOCK = 1 << 20  # numbers in float64 at a time
_ITERATIONS = 1000  # of Weiszfeld's, on k numbers each
_TOLERANCE = 1e-12  # relative change of the objective at which they end
_SMOOTHING = 1e-6  # distances below it count as it

Combine: TypeAlias = Callable[[Tensor, Tensor, Across], Tensor]
"""From rows ``(k, d)`` and weights ``(k,)`` to ``(d,)`` in float64."""


def median(rows: Tensor, weights: Tensor, across: Across = whole) -> Tensor:  # noqa: ARG001  one vote a device
    """The median of each number over the devices, whatever their weights (Yin et al. 2018); of two, their mean."""
    count = len(rows)
    return _by_column(rows, lambda columns: _middle(columns, (count - 1) // 2, count // 2 + 1))


def trimmed_mean(
    rows: Tensor,
    weights: Tensor,  # noqa: ARG001  one vote a device
    across: Across = whole,  # noqa: ARG001  columns are apart
    *,
    fraction: float,
) -> Tensor:
    """The mean of each number without the ``floor(fraction k)`` least and greatest (Yin et al. 2018), unweighted."""
    drop = _trimmed(len(rows), fraction)
    return _by_column(rows, lambda columns: _middle(columns, drop, len(rows) - drop))


def krum(
    rows: Tensor,
    weights: Tensor,  # noqa: ARG001  one vote a device
    across: Across = whole,
    *,
    byzantine: int,
    chosen: int = 1,
) -> Tensor:
    """The mean of the ``chosen`` rows that lie closest to their neighbours (Blanchard et al. 2017), unweighted.

    A row's score is the sum of its squared distances to the ``k - byzantine - 2`` nearest others; of equal scores the
    first device's wins.
    """
    squares = distances(rows, across)
    near = len(rows) - byzantine - 2
    scores = squares.fill_diagonal_(math.inf).sort(dim=1).values[:, :near].sum(dim=1)
    best = scores.argsort(stable=True)[:chosen]
    return _mix(rows[best.sort().values], torch.full((chosen,), 1 / chosen, dtype=torch.float64, device=rows.device))


def geometric_median(rows: Tensor, weights: Tensor, across: Across = whole) -> Tensor:
    """The point with the least weighted sum of distances to the rows: smoothed Weiszfeld (Pillutla et al. 2022).

    Every iterate is a weighted mean ``sum_k c_k rows_k``, whose distances follow from those between rows::

        |sum_k c_k rows_k - rows_i|^2 = sum_k c_k D_ik - 1/2 sum_kl c_k c_l D_kl       D_kl = |rows_k - rows_l|^2

    so the rows are read twice, however many iterations there are.
    """
    squares, alpha = distances(rows, across), weights.double() / weights.double().sum()
    c, last = alpha, math.inf
    for _ in range(_ITERATIONS):
        cross = squares @ c
        apart = (cross - (c @ cross) / 2).clamp(min=0).sqrt().clamp(min=_SMOOTHING)
        objective = float(alpha @ apart)
        if last - objective <= _TOLERANCE * objective:
            break
        last = objective
        pulls = alpha / apart
        c = pulls / pulls.sum()
    return _mix(rows, c)


def distances(rows: Tensor, across: Across = whole) -> Tensor:
    """Squared distances between the rows, ``(k, k)`` in float64, from Gram blocks."""
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for columns in torch.split(rows, _width(rows), dim=1):
        exact = columns.double()
        gram.addmm_(exact, exact.T)
    gram = across(gram)
    norms = gram.diagonal()
    squares: Tensor = norms[:, None] + norms[None, :] - 2 * gram
    return squares.clamp(min=0).fill_diagonal_(0)


@dataclass(frozen=True)
class Rule:
    """A rule that looks at all devices' uploads at once: a round keeps them all, O(k d).

    Attributes:
        words: as a person writes it.
        combine: the function.
        fewest: reports below which it protects nobody.
    """

    words: str
    combine: Combine
    fewest: int

    def __call__(self, rows: Tensor, weights: Tensor, across: Across = whole) -> Tensor:
        """Combine the rows.

        Raises:
            RunError: they are too few.
        """
        if len(rows) < self.fewest:
            raise RunError(
                f"{len(rows)} reports, and {self.words} needs {self.fewest}",
                where="robust",
                remedy=f"Set minimum to {self.fewest} or more, or choose another rule",
            )
        return self.combine(rows, weights, across)


@dataclass(frozen=True)
class Clip:
    """Norm clipping: a longer upload is shortened to ``norm`` before it is folded; it streams.

    Attributes:
        words: as a person writes it.
        norm: the greatest Euclidean norm of a device's MEAN slots together.
    """

    words: str
    norm: float
    fewest: int = 1

    def __call__(self, rows: Trees, across: Across = whole) -> float:
        """What to multiply one device's MEAN slots by: at most 1."""
        squares = [_square(tensor) for tree in rows.values() for tensor in tree.values()]
        norm = math.sqrt(float(across(torch.stack(squares).sum()))) if squares else 0.0
        return 1.0 if norm <= self.norm else self.norm / norm


def rule_of(words: str) -> Rule | Clip | None:
    """The rule that a person names; None for no words.

    Args:
        words: ``median``, ``trimmed_mean:FRACTION``, ``krum:WILD``, ``multi_krum:WILD:CHOSEN``, ``geometric_median`` or
            ``clip:NORM``, where WILD is how many wild devices a round may have.

    Raises:
        ConfigError: it is none of these, or a number that it cannot have.
    """
    name, *numbers = words.split(":") if words else [""]
    match name:
        case "":
            return None
        case "median":
            _numbers(words, numbers, ())
            return Rule(words, median, 3)
        case "trimmed_mean":
            (fraction,) = _numbers(words, numbers, ("FRACTION",))
            return Rule(words, functools.partial(trimmed_mean, fraction=fraction), _fewest_trimmed(words, fraction))
        case "krum":
            (wild,) = _numbers(words, numbers, ("WILD",))
            return _krum(words, wild, 1)
        case "multi_krum":
            wild, chosen = _numbers(words, numbers, ("WILD", "CHOSEN"))
            return _krum(words, wild, chosen)
        case "geometric_median":
            _numbers(words, numbers, ())
            return Rule(words, geometric_median, 3)
        case "clip":
            (norm,) = _numbers(words, numbers, ("NORM",))
            if norm <= 0:
                raise _wrong(words, "nothing would be left")
            return Clip(words, norm)
    raise _wrong(words, "there is no such rule")


def check(algorithm: Algorithm, plan: Plan, rule: Rule | Clip | None, minimum: int) -> None:
    """Refuse a rule that would protect nothing, or that the algorithm would be another one with.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        rule: that it is to have.
        minimum: reports below which a round is abandoned.

    Raises:
        ConfigError: with the reason.
    """
    if rule is None:
        return
    sent = {name: slot.reduce for name, slot in plan.by_role(Role.UP).items() if slot.tensors}
    reduce = {**sent, **algorithm.rebuilt}
    name = type(algorithm).__name__
    if summed := sorted(slot for slot, how in reduce.items() if how is Reduce.SUM):
        raise _unusable(name, f"it adds up {' and '.join(summed)}, which one device can move at will")
    if Reduce.MEAN not in reduce.values():
        raise _unusable(name, "it averages nothing that devices send")
    if algorithm.participation is Participation.ALL:
        raise _unusable(name, "its devices count on the server's model being their mean")
    if minimum < rule.fewest:
        raise ConfigError(
            f"{rule.words} needs {rule.fewest} reports, and a round may have {minimum}",
            where="robust",
            remedy=f"Set minimum to {rule.fewest} or more",
        )


def _unusable(algorithm: str, reason: str) -> ConfigError:
    remedy = "Leave robust out, or choose an algorithm that only averages, such as fedavg"
    return ConfigError(f"{algorithm} takes no robust rule: {reason}", where="robust", remedy=remedy)


def _wrong(words: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{words[:80]!r} will not do: {reason}",
        where="robust",
        remedy="Choose of median, trimmed_mean:0.1, krum:WILD, multi_krum:WILD:CHOSEN, geometric_median, clip:NORM",
    )


def _numbers(words: str, given: Sequence[str], wanted: Sequence[str]) -> list[float]:
    if len(given) != len(wanted):
        raise _wrong(words, f"it takes {' and '.join(wanted) or 'no number'}")
    try:
        found = [float(each) for each in given]
    except ValueError as error:
        raise _wrong(words, "that is no number") from error
    if not all(math.isfinite(each) for each in found):
        raise _wrong(words, "that is no number")
    return found


def _krum(words: str, wild: float, chosen: float) -> Rule:
    if wild != int(wild) or chosen != int(chosen) or wild < 0 or chosen < 1:
        raise _wrong(words, "devices are counted in whole numbers, and one at least is chosen")
    combine = functools.partial(krum, byzantine=int(wild), chosen=int(chosen))
    return Rule(words, combine, int(max(2 * wild + 3, wild + 2 + chosen)))


def _fewest_trimmed(words: str, fraction: float) -> int:
    if not 0 <= fraction < 1 / 2:
        raise _wrong(words, "a fraction from each end is at least 0 and below 0.5")
    fewest = 1
    while fraction and _trimmed(fewest, fraction) < 1:
        fewest += 1
        if fewest > 1 << 20:
            raise _wrong(words, "no round has so many devices that one would be left out")
    return fewest


def _trimmed(count: int, fraction: float) -> int:
    """How many are left out at each end; 0.1 of 10 is one, although 0.1 is a little more than a tenth or less."""
    return math.floor(fraction * count * (1 + 1e-12))


def _width(rows: Tensor) -> int:
    return max(1, _BLOCK // max(1, len(rows)))


def _by_column(rows: Tensor, combine: Callable[[Tensor], Tensor]) -> Tensor:
    """``combine`` takes ``(columns, k)``, each row sorted."""
    blocks = torch.split(rows, _width(rows), dim=1)
    return torch.cat([combine(block.T.contiguous().sort(dim=1).values) for block in blocks]).double()


def _middle(columns: Tensor, start: int, end: int) -> Tensor:
    return columns[:, start:end].double().mean(dim=1)


def _mix(rows: Tensor, weights: Tensor) -> Tensor:
    """``sum_k weights_k rows_k`` in float64, ``(d,)``."""
    return torch.cat([weights @ columns.double() for columns in torch.split(rows, _width(rows), dim=1)])


def _square(tensor: Tensor) -> Tensor:
    """The sum of squares, a float64 tensor without dimensions."""
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()
