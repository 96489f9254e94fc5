"""Interpolation along each axis as a product with a small constant matrix; copies, where it repeats whole elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exporters.along import matrix_of, mix

aten = torch.ops.aten

_ONE_AXIS: dict[str, Callable[[Tensor, int, bool, float | None], Tensor]] = {
    "nearest": lambda x, out, _, scale: aten.upsample_nearest1d(x, [out], scale),
    "nearest-exact": lambda x, out, _, scale: aten._upsample_nearest_exact1d(x, [out], scale),  # noqa: SLF001  its name
    "linear": lambda x, out, corners, scale: aten.upsample_linear1d(x, [out], corners, scale),
    # cubic exists in two dimensions only: the other one stays as it is, with aligned corners or without
    "cubic": lambda x, out, corners, scale: aten.upsample_bicubic2d(
        x.unsqueeze(0), [x.shape[1], out], corners, None, scale
    )[0],
}


@dataclass(frozen=True)
class Interpolation:
    """A kind of interpolation as aten's operators, forward and backward.

    Attributes:
        mode: ``nearest``, ``nearest-exact``, ``linear`` or ``cubic``.
    """

    mode: str

    def forward(self, x: Tensor, out: Sequence[int], *settings: object) -> Tensor:
        """``(rows, channels, *sizes)`` -> ``(rows, channels, *out)``; the settings are ``align_corners`` and scales."""
        corners, scales = self._settings(settings, len(out))
        for dim, (target, scale) in enumerate(zip(out, scales, strict=True), start=2):
            if self._whole(x.shape[dim], target, scale):
                x = _copies(x, dim, target)
            else:
                x = mix(x, dim, self._matrix(x.shape[dim], target, scale, corners=corners, like=x))
        return x

    def vector(self, x: Tensor, out: Sequence[int] | None, *settings: object) -> Tensor:
        """The overload with one list of factors, where ``out`` may follow from them."""
        *rest, factors = settings
        count = x.dim() - 2
        scales = list(factors) if isinstance(factors, list | tuple) else [None] * count
        sizes = out or [int(size * (scale or 1)) for size, scale in zip(x.shape[2:], scales, strict=True)]
        return self.forward(x, sizes, *rest, *scales)

    def backward(self, grad: Tensor, out: Sequence[int], sizes: Sequence[int], *settings: object) -> Tensor:
        """The gradient of :meth:`forward` in ``x``, whose shape is ``sizes``."""
        corners, scales = self._settings(settings, len(out))
        for dim in range(grad.dim() - 1, 1, -1):
            size, target, scale = sizes[dim], out[dim - 2], scales[dim - 2]
            if self._whole(size, target, scale):
                grad = grad.reshape(*grad.shape[:dim], size, target // size, *grad.shape[dim + 1 :]).sum(dim + 1)
            else:
                matrix = self._matrix(size, target, scale, corners=corners, like=grad)
                grad = mix(grad, dim, matrix.transpose(0, 1))
        return grad

    def _settings(self, settings: Sequence[object], count: int) -> tuple[bool, list[float | None]]:
        corners = bool(settings[0]) if "nearest" not in self.mode and settings else False
        given = list(settings[0 if "nearest" in self.mode else 1 :])
        return corners, [float(s) if isinstance(s, int | float) else None for s in [*given, *[None] * count][:count]]

    def _whole(self, size: int, target: int, scale: float | None) -> bool:
        return "nearest" in self.mode and target % size == 0 and (scale is None or scale == target // size)

    def _matrix(self, size: int, target: int, scale: float | None, *, corners: bool, like: Tensor) -> Tensor:
        def operator(identity: Tensor) -> Tensor:
            found: Tensor = _ONE_AXIS[self.mode](identity.unsqueeze(0), target, corners, scale)[0]
            return found

        return matrix_of(operator, size, like.dtype)


def _copies(x: Tensor, dim: int, target: int) -> Tensor:
    shape = [-1] * (x.dim() + 1)
    shape[dim + 1] = target // x.shape[dim]
    return x.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)
