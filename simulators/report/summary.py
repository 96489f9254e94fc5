"""What a fleet's accuracies come to: a mean hides the devices that a method leaves behind, so the worst are named."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from edgepfl.errors import DataError


@dataclass(frozen=True)
class Summary:
    """Accuracies over a fleet, 0 to 1.

    Attributes:
        mean: over the devices, each counting the same.
        worst_decile: mean of the worst tenth of the devices, rounded up: 2 of 20.
        best: the best device's.
        before: the mean before the first round, where it was measured.
    """

    mean: float
    worst_decile: float
    best: float
    before: float | None = None

    @property
    def figures(self) -> tuple[float, float, float]:
        """What tables show: mean, worst decile, best."""
        return self.mean, self.worst_decile, self.best


def summary(accuracies: Iterable[float]) -> Summary:
    """Mean, worst decile and best of the devices' accuracies.

    >>> summary([0.5, 0.75, 1.0])
    Summary(mean=0.75, worst_decile=0.5, best=1.0, before=None)

    Raises:
        DataError: there is no device, or an accuracy is not a number.
    """
    ascending = sorted(accuracies)
    if not ascending or any(map(math.isnan, ascending)):
        raise DataError("accuracies without a device, or not numbers", where="summary")
    worst = ascending[: -(-len(ascending) // 10)]
    return Summary(math.fsum(ascending) / len(ascending), math.fsum(worst) / len(worst), ascending[-1])
