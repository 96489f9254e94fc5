"""What a task says of differential privacy."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a device does with its contribution before anything of it leaves.

    Attributes:
        clip: the greatest L2 norm of all UP slots together.
        noise: standard deviation of the normals that the device adds to each number; 0 where the coordinator adds it.
        metrics: whether the device tells its losses, accuracies and times, which no noise covers.
    """

    clip: Annotated[float, Meta(gt=0, le=1e30)]
    noise: Annotated[float, Meta(ge=0, le=1e30)] = 0.0
    metrics: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.clip) or not math.isfinite(self.noise):
            raise ValueError("clip or noise is not finite")
