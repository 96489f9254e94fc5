from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _layer_check import RUNTIMES, Call, Case, call, case, decomposed, exported, on
from torch import Tensor, nn
from torch.nn import functional

FUTURE = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
QKV = ((2, 2, 5, 4),) * 3


def _heads(name: str, function: Callable[..., Any], *shapes: tuple[int, ...], **settings: Any) -> Case:  # noqa: ANN401  whatever the layer takes
    return case(name, lambda: Call(function, nn.MultiheadAttention(8, 2, batch_first=True, **settings)), *shapes)


def _encoder(**settings: Any) -> nn.TransformerEncoderLayer:  # noqa: ANN401  likewise
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **settings)


MULTI_HEAD = [
    _heads("self", lambda m, x: m(x, x, x, need_weights=False)[0], (2, 5, 8)),
    _heads("self, with weights", lambda m, x: m(x, x, x), (2, 5, 8)),
    _heads("weights of each head", lambda m, x: m(x, x, x, average_attn_weights=False), (2, 5, 8)),
    _heads("cross", lambda m, q, k: m(q, k, k, need_weights=False)[0], (2, 5, 8), (2, 3, 8)),
    _heads(
        "other widths", lambda m, q, k, v: m(q, k, v)[0], (2, 5, 8), (2, 3, 6), (2, 3, 7), kdim=6, vdim=7, bias=False
    ),
    _heads("mask", lambda m, x: m(x, x, x, need_weights=False, attn_mask=FUTURE)[0], (2, 5, 8)),
    _heads("causal", lambda m, x: m(x, x, x, need_weights=False, attn_mask=FUTURE, is_causal=True)[0], (2, 5, 8)),
    _heads("padding", lambda m, x: m(x, x, x, need_weights=False, key_padding_mask=PADDED)[0], (2, 5, 8)),
    _heads("bias_kv", lambda m, x: m(x, x, x, need_weights=False)[0], (2, 5, 8), add_bias_kv=True, add_zero_attn=True),
]


def _product(**settings: Any) -> Callable[..., Tensor]:  # noqa: ANN401  likewise
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, **settings)


PRODUCTS = [
    call("sdpa", _product(), (2, 2, 5, 4), (2, 2, 3, 4), (2, 2, 3, 4)),
    call("sdpa causal", _product(is_causal=True, scale=0.3), *QKV),
    call("sdpa masked", _product(attn_mask=~FUTURE), *QKV),
    call("sdpa nowhere to look", _product(attn_mask=~FUTURE & (torch.arange(5) > 0)), *QKV),
    call("sdpa grouped", _product(enable_gqa=True), (2, 4, 5, 4), *[(2, 2, 5, 4)] * 2),
    call("sdpa of one head", _product(), (2, 5, 4), (2, 3, 4), (2, 3, 4)),
    call(
        "sdpa learned mask",
        lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, attn_mask=m),
        *QKV,
        (2, 1, 5, 5),
    ),
]

TRANSFORMERS = [
    case("encoder layer", _encoder, (2, 5, 8)),
    case("encoder layer, norm first", lambda: _encoder(norm_first=True, activation="gelu"), (2, 5, 8)),
    case("encoder layer in evaluation", lambda: _encoder().eval(), (2, 5, 8)),  # torch's fused path, without gradients
    case("encoder", lambda: nn.TransformerEncoder(_encoder(), 2, enable_nested_tensor=False).eval(), (2, 5, 8)),
    case("decoder layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8), (2, 3, 8)),
    case(
        "causal encoder layer",
        lambda: Call(
            lambda m, x: m(x, nn.Transformer.generate_square_subsequent_mask(5, dtype=x.dtype), is_causal=True),
            _encoder(),
        ),
        (2, 5, 8),
    ),
]


@pytest.mark.parametrize("layer", [*MULTI_HEAD, *PRODUCTS, *TRANSFORMERS], ids=str)
def test_attention_is_torchs(layer: Case) -> None:
    # Torch's decomposition of the fused kernel's forward pass and the kernel's own backward gave wrong gradients.
    assert decomposed(layer) > 100


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_attention_on_a_runtime(runtime: str) -> None:
    layers = [MULTI_HEAD[1], MULTI_HEAD[6], MULTI_HEAD[7], *PRODUCTS[:5]]
    assert exported(on(runtime, layers), runtime) > 500


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_transformers_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, [TRANSFORMERS[2], TRANSFORMERS[5]]), runtime) > 500
