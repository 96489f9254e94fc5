"""A forward pass in training mode on a padded minibatch: what its layers must know that torch's own do not.

Batch normalisation must leave padding rows out of its statistics, and dropout must draw from the agent's generator, so
that a run can be replayed bit for bit on every runtime; so must whatever else draws, such as stochastic depth.  All are
intercepted where modules call them, most in ``torch.nn.functional``; what comes in another way is refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edgepfl.errors import ExportError

_ALPHA = -1.7580993408473766  # -scale * alpha of SELU: what alpha dropout sets a unit to


class Forward(TorchFunctionMode):
    """Carries out batch normalisation and random draws while a module runs.

    Args:
        weight: ``(size,)``, 0 for padding rows.
        noise: standard normals, one tensor for each call of dropout; None to record what is called for.

    Attributes:
        shapes: of the noise that was called for.
        moved: running statistics after the pass, by name.
    """

    def __init__(self, weight: Tensor, noise: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []
        self.moved: dict[str, Tensor] = {}
        self._weight = weight
        self._noise = noise
        self._names: dict[int, str] = {}
        self._handlers: Mapping[Callable[..., Any], Callable[..., Any]] = {
            functional.batch_norm: self._batch_norm,
            functional.dropout: functools.partial(self._dropout, _scaled, features=False),
            functional.dropout1d: functools.partial(self._dropout, _scaled, features=True),
            functional.dropout2d: functools.partial(self._dropout, _scaled, features=True),
            functional.dropout3d: functools.partial(self._dropout, _scaled, features=True),
            functional.alpha_dropout: functools.partial(self._dropout, _self_normalising, features=False),
            functional.feature_alpha_dropout: functools.partial(self._dropout, _self_normalising, features=True),
            functional.multi_head_attention_forward: self._multi_head,
            functional.scaled_dot_product_attention: self._attention,
            torch.batch_norm: _refuse_batch_norm,
            torch.Tensor.bernoulli_: self._bernoulli,
            torch.rand: functools.partial(self._numbers, _uniform),
            torch.rand_like: functools.partial(self._numbers_like, _uniform),
            torch.randn: functools.partial(self._numbers, _normal),
            torch.randn_like: functools.partial(self._numbers_like, _normal),
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the function gives
        """See :class:`torch.overrides.TorchFunctionMode`."""
        return self._handlers.get(func, func)(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching(self, statistics: Mapping[str, Tensor]) -> Iterator[None]:
        """While a module runs with these tensors as its running statistics."""
        self._names = {id(tensor): name for name, tensor in statistics.items()}
        with self:
            yield

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,  # noqa: FBT001, FBT002  torch's own signature
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalise with the statistics of the rows that count: ``mean = sum(w x) / sum(w)``, likewise the variance.

        Where the weights are 0 and 1 this is what torch gives for the rows of weight 1.
        """
        if not training:
            return functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        if running_mean is None and x.shape[0] == 1 < self._weight.shape[0]:
            return _standardised(x, weight, bias, eps)
        rows = self._rows(x)
        over = [0, *range(2, x.dim())]
        count = rows.sum() * x[0, 0].numel()
        none = (count == 0).to(x.dtype)  # nothing but padding: then nothing may divide by zero, or grow without bound
        mean = (rows * x).sum(over, keepdim=True) / (count + none)
        centred = x - mean
        variance = (rows * centred * centred).sum(over, keepdim=True) / (count + none)
        self._move(running_mean, mean.flatten(), momentum, count)
        others = (count - 1).clamp(min=1.0)  # torch refuses a single value, but a last short minibatch may be one
        self._move(running_var, (variance * count / others).flatten(), momentum, count)
        normal = centred * torch.rsqrt(variance + eps + none)
        return _scaled_by(normal, weight, bias)

    def _rows(self, x: Tensor) -> Tensor:
        """The weights beside ``x``, whose first axis may have several entries for each row of the minibatch."""
        times, rest = divmod(x.shape[0], self._weight.shape[0])
        if rest:
            raise ExportError(
                f"batch normalisation over {x.shape[0]} rows, and a minibatch has {self._weight.shape[0]}",
                remedy="Keep the examples on the first axis",
            )
        return self._weight.repeat_interleave(times).reshape(-1, *[1] * (x.dim() - 1))

    def _move(self, running: Tensor | None, found: Tensor, momentum: float, count: Tensor) -> None:
        if running is None or (name := self._names.get(id(running))) is None:
            raise ExportError("batch normalisation has no running statistics of its own")
        before = self.moved.get(name, running)  # a layer may be called twice
        rate = momentum * (count > 0).to(found.dtype)
        self.moved[name] = before + rate * (found.detach() - before)

    def _dropout(
        self,
        drop: Callable[[Tensor, Tensor, float], Tensor],
        x: Tensor,
        p: float = 0.5,
        training: bool = True,  # noqa: FBT001, FBT002  torch's own signature
        inplace: bool = False,  # noqa: ARG002, FBT001, FBT002  likewise
        *,
        features: bool,
    ) -> Tensor:
        """Drop units, or whole channels of a batch."""
        if not training or p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if features else tuple(x.shape)
        return drop(x, self._kept(shape, p, x), p)

    def _kept(self, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        """1 with probability ``1 - p``, else 0: where a standard normal exceeds its quantile at ``p``."""
        normal = self._draw(shape)
        if p >= 1:
            return like.new_zeros(shape)
        if normal is None or p <= 0:
            return like.new_ones(shape)
        return (normal > NormalDist().inv_cdf(p)).to(like.dtype)

    def _draw(self, shape: tuple[int, ...]) -> Tensor | None:
        """Standard normals; None while what is called for is recorded."""
        self.shapes.append(shape)
        if self._noise is None:
            return None
        normal = self._noise[len(self.shapes) - 1]
        if tuple(normal.shape) != shape:
            raise ExportError(
                f"it draws {list(shape)} random numbers for a part of a minibatch, and {list(normal.shape)} are here",
                where="random draws",
                remedy="Keep the examples on the first axis",
            )
        return normal

    def _bernoulli(self, x: Tensor, p: float | Tensor = 0.5, **_: object) -> Tensor:
        """What stochastic depth draws with: 1 with probability ``p``, else 0."""
        if isinstance(p, Tensor):
            raise ExportError("Tensor.bernoulli_ with a tensor of probabilities", remedy="Use nn.Dropout")
        return x.copy_(self._kept(tuple(x.shape), 1 - p, x))

    def _numbers(
        self,
        made: Callable[[Tensor], Tensor],
        *sizes: Any,  # noqa: ANN401  torch's own signature
        size: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        **_: object,
    ) -> Tensor:
        """Random numbers, made of standard normals."""
        shape = tuple(size if size is not None else sizes if not sizes or isinstance(sizes[0], int) else sizes[0])
        normal = self._draw(shape)
        numbers = made(torch.zeros(shape) if normal is None else normal)
        return numbers if dtype is None else numbers.to(dtype)

    def _numbers_like(
        self, made: Callable[[Tensor], Tensor], x: Tensor, *, dtype: torch.dtype | None = None, **_: object
    ) -> Tensor:
        return self._numbers(made, size=tuple(x.shape), dtype=dtype or x.dtype)

    def _multi_head(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  torch's own signature
        """Torch's own, but for the dropout inside it, which it would not ask us for."""
        dropout = functools.partial(self._dropout, _scaled, features=False)
        with (
            mock.patch.object(functional, "dropout", dropout),
            mock.patch.object(functional, "scaled_dot_product_attention", self._attention),
        ):
            return functional.multi_head_attention_forward(*args, **kwargs)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002  torch's own signature
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002  likewise
    ) -> Tensor:
        """Scaled dot product attention in plain operators: ``softmax(scale q k^T + mask) v``."""
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            additive = attn_mask.to(scores.dtype) if attn_mask.dtype is not torch.bool else _closed(attn_mask, scores)
            scores = scores + additive
        shares = torch.softmax(scores, -1)
        return self._dropout(_scaled, shares, dropout_p, training=True, features=False) @ value


def _normal(normal: Tensor) -> Tensor:
    return normal


def _uniform(normal: Tensor) -> Tensor:
    """Numbers from 0 to 1, by the normal distribution's function."""
    return 0.5 * (1.0 + torch.erf(normal * 0.5**0.5))


def _standardised(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Channels of a ``(1, channels, ...)`` that is no minibatch: how convolutions standardise their weights."""
    over = list(range(2, x.dim()))
    centred = x - x.mean(over, keepdim=True)
    return _scaled_by(centred * torch.rsqrt((centred * centred).mean(over, keepdim=True) + eps), weight, bias)


def _scaled_by(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Each channel times its weight, plus its bias."""
    shape = (1, -1, *[1] * (normal.dim() - 2))
    scaled = normal if weight is None else normal * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def _closed(mask: Tensor, like: Tensor) -> Tensor:
    """0 where attention may look, and far below every score where it may not; not infinite, which gives NaN at all."""
    return (1.0 - mask.to(like.dtype)) * -1e9


def _scaled(x: Tensor, kept: Tensor, p: float) -> Tensor:
    return x * kept / (1 - p) if p < 1 else x * kept


def _self_normalising(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """Klambauer et al. 2017, section 3: keeps mean and variance of SELU's activations."""
    if p >= 1:
        return x * kept
    slope = float(((1 - p) * (1 + p * _ALPHA**2)) ** -0.5)
    return slope * (x * kept + _ALPHA * (1 - kept)) - slope * p * _ALPHA


def _refuse_batch_norm(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401  torch's own signature
    training = kwargs.get("training", args[5] if len(args) > 5 else False)  # noqa: PLR2004  its place
    if training:
        raise ExportError(
            "torch.batch_norm would count padding rows",
            remedy="Call torch.nn.functional.batch_norm or use nn.BatchNorm",
        )
    normalised: Tensor = torch.batch_norm(*args, **kwargs)
    return normalised
