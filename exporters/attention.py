"""Scaled dot product attention and its gradients in plain products.

Torch's fused kernel keeps a logarithm of each row's sum for its gradient.  Torch's decomposition of the forward pass
does not give it, and with the kernel's own backward pass the gradients were silently wrong.  Here the backward pass
computes the shares again; what it has in common with the forward pass is shared.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CLOSED = -1e9
"""Far below every score: a share of exactly 0, where minus infinity in a whole row gives no number at all."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,  # noqa: ARG001  the fused kernel is not called with dropout
    is_causal: bool = False,  # noqa: FBT001, FBT002  aten's own signature
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten._scaled_dot_product_flash_attention_for_cpu``: ``softmax(scale q k^T + mask) v``, and a stand-in.

    Args:
        query: ``(rows, heads, length, size)``.
        key: ``(rows, heads, others, size)``.
        value: likewise.
        dropout_p: 0.
        is_causal: position ``i`` looks at those up to ``i``.
        attn_mask: added to the scores; minus infinity where nobody may look.
        scale: ``1 / sqrt(size)`` unless given.
    """
    key, value = (_repeated(each, query) for each in (key, value))
    out = _shares(query, key, is_causal=is_causal, mask=attn_mask, scale=scale) @ value
    return out, query.new_zeros(query.shape[:-1])


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,  # noqa: ARG001  aten's own signature
    logsumexp: Tensor,  # noqa: ARG001  likewise
    dropout_p: float,  # noqa: ARG001  likewise
    is_causal: bool,  # noqa: FBT001  likewise
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in query, key and value; the fused kernel is not called where the mask needs one."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    heads = key.shape[1]
    key, value = (_repeated(each, query) for each in (key, value))
    shares = _shares(query, key, is_causal=is_causal, mask=attn_mask, scale=scale)
    in_shares = grad @ value.transpose(-1, -2)
    in_scores = torch.ops.aten._softmax_backward_data(in_shares, shares, -1, shares.dtype) * factor  # noqa: SLF001  its name
    in_key, in_value = in_scores.transpose(-1, -2) @ query, shares.transpose(-1, -2) @ grad
    return in_scores @ key, _summed(in_key, heads), _summed(in_value, heads)


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Keys and values that several heads of the query share, once for each of them."""
    times = query.shape[1] // x.shape[1]
    return x if times == 1 else x.repeat_interleave(times, 1)


def _summed(grad: Tensor, heads: int) -> Tensor:
    """The adjoint of :func:`_repeated`."""
    return grad if grad.shape[1] == heads else grad.reshape(grad.shape[0], heads, -1, *grad.shape[2:]).sum(2)


def _shares(query: Tensor, key: Tensor, *, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    """``softmax(scale q k^T + mask)``; a row that may look nowhere has shares of 0, as torch has it."""
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        places = torch.arange(scores.shape[-2]).unsqueeze(1), torch.arange(scores.shape[-1])
        scores = scores + (places[1] > places[0]).to(scores.dtype) * _CLOSED
    if mask is None:
        return torch.softmax(scores, -1)
    somewhere = (mask > _CLOSED).to(scores.dtype).amax(-1, keepdim=True)
    return torch.softmax(scores + mask.clamp(min=_CLOSED), -1) * somewhere
