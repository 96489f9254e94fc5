"""Transposed convolution: the gradient of an ordinary one in its input, so its own gradients are ordinary ones too.

With ``C`` the convolution by the same kernel, ``y = C^T x``: so ``dx = C dy``, and ``dW`` is the kernel's gradient of
``C`` at ``dy`` with ``x`` coming back.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from exporters import convolution as ordinary
from exporters.windows import repeated


def either(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  aten's own signature
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """``aten.convolution``, transposed or not."""
    if x.dim() < weight.dim():  # without a batch axis
        given = stride, padding, dilation, transposed, output_padding, groups
        return either(x.unsqueeze(0), weight, bias, *given).squeeze(0)
    if transposed:
        return convolution(x, weight, bias, stride, padding, dilation, output_padding, groups)
    return ordinary.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def either_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001  aten's own signature
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``aten.convolution_backward``, transposed or not."""
    if transposed:
        return convolution_backward(grad, x, weight, stride, padding, dilation, groups, output_mask)
    return ordinary.convolution_backward(
        grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """``(rows, in, *sizes)``, ``(in, out / groups, *kernel)`` -> ``(rows, out, *lengths)``."""
    settings = stride, padding, dilation
    lengths = [
        (size - 1) * s - 2 * p + d * (kernel - 1) + more + 1
        for size, kernel, s, p, d, more in _each(x, weight, *settings, output_padding)
    ]
    like = x.new_zeros(x.shape[0], weight.shape[1] * groups, *lengths)  # only its shape is read
    mask = [True, False, False]
    y, _, _ = ordinary.convolution_backward(x, like, weight, None, *settings, False, [0], groups, mask)  # noqa: FBT003
    assert y is not None  # noqa: S101  the mask asks for it
    return y if bias is None else y + bias.reshape(-1, *[1] * len(lengths))


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of :func:`convolution` in ``x``, ``weight`` and ``bias``, those that the mask asks for."""
    settings = stride, padding, dilation
    kept = _kept(grad, x, weight, settings)
    in_x = in_weight = in_bias = None
    if output_mask[0]:
        in_x = ordinary.convolution(kept, weight, None, *settings, False, [0], groups)  # noqa: FBT003  aten's signature
    if output_mask[1]:
        mask = [False, True, False]
        _, in_weight, _ = ordinary.convolution_backward(x, kept, weight, None, *settings, False, [0], groups, mask)  # noqa: FBT003
    if output_mask[2]:
        in_bias = grad.sum([0, *range(2, grad.dim())])
    return in_x, in_weight, in_bias


def _kept(
    grad: Tensor, x: Tensor, weight: Tensor, settings: tuple[Sequence[int], Sequence[int], Sequence[int]]
) -> Tensor:
    """``grad`` without the rim that output padding added and no element of ``x`` reaches.

    Where the output padding is at least the stride, the convolution would find room for one more window there.
    """
    for dim, (size, kernel, s, p, d, _) in enumerate(_each(x, weight, *settings, [0]), start=2):
        reach = (size - 1) * s - 2 * p + d * (kernel - 1) + 1
        if (grad.shape[dim] - reach) >= s:
            grad = grad.narrow(dim, 0, reach)
    return grad


def _each(x: Tensor, weight: Tensor, *settings: Sequence[int]) -> list[tuple[int, ...]]:
    """Size, kernel and each setting of each axis."""
    sizes, kernels = x.shape[2:], weight.shape[2:]
    return list(zip(sizes, kernels, *(repeated(values, len(sizes)) for values in settings), strict=True))
