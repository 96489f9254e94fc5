"""What a task says of secure aggregation."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

SLOTS_LIMIT = 64
"""UP slots that a plan may have under secure aggregation."""


class Terms(msgspec.Struct, frozen=True):
    """How a device encodes and hides its upload.

    Attributes:
        bits: of each number of the masked upload; sums are modulo ``2^bits``.
        fraction: bits after the binary point.
        clip: the greatest magnitude that a number of an upload may have, before it is weighted.
        most: the greatest weight (examples) of a device.
        weighted: the UP slots that are sent times the device's examples, in the order of their names; the others are
            sent as they are.
    """

    bits: Literal[32, 64]
    fraction: Annotated[int, Meta(ge=0, le=62)]
    clip: Annotated[float, Meta(ge=1e-9, le=1e30)]
    most: Annotated[int, Meta(ge=1, le=1 << 31)]
    weighted: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=SLOTS_LIMIT)]
