"""Parts that several models of the zoo are made of."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from torch import Tensor, nn

Norm: TypeAlias = Literal["batch", "group"]
"""Which normalisation: batch normalisation has running statistics, group normalisation works on one example alone."""

_GROUP = 8  # channels in a group, as near as the number of channels allows


def norm2d(kind: Norm, channels: int) -> nn.Module:
    """A normalisation layer over the channels of pictures."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // math.gcd(channels, _GROUP), channels)


def conv2d(
    norm: Norm, inside: int, outside: int, kernel: int | tuple[int, int], *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution and normalisation, padded to keep sizes where the stride is 1 and the kernel odd."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sizes[0] // 2, sizes[1] // 2)
    conv = nn.Conv2d(inside, outside, sizes, stride, padding, groups=groups, bias=False)
    return nn.Sequential(conv, norm2d(norm, outside))


class Residual(nn.Module):
    """``x + body(x)``, ``x`` through ``short`` where the body changes its shape."""

    def __init__(self, body: nn.Module, short: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.short = short

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that the body takes."""
        direct = x if self.short is None else self.short(x)
        return direct + self.body(x)  # type: ignore[no-any-return]  # torch's modules are untyped callables
