"""Losses and metrics: from a module's outputs and the targets to one number for each example.

A loss that is not here may be any function of ``(outputs, y)`` that gives ``(size,)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from edgepfl.errors import ExportError
from edgepfl.plan import ExampleSpec

PerExample: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs ``(size, ...)``, targets ``(size, ...)``) -> one number for each example, ``(size,)``."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood of each example's class, the mean over its positions where it has several.

    A product with a one-hot matrix, not ``nll_loss``: that one's translation to ONNX gave gradients that were batch
    size times too large.

    Args:
        logits: ``(size, classes, *positions)``.
        y: int64 ``(size, *positions)``, the classes.

    Returns:
        ``(size,)``.
    """
    return _mean(-(torch.log_softmax(logits, 1) * one_hot(_classes(y, logits), logits)).sum(1))


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error, the mean over an example's outputs."""
    return _mean((outputs - _like(y, outputs)) ** 2)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Huber's loss with a threshold of 1: ``e^2 / 2`` below it, ``|e| - 1/2`` above; the mean over outputs.

    As ``c (|e| - c / 2)`` with ``c = min(|e|, 1)``: no branch, and its gradient is ``c sign(e)``.
    """
    error = (outputs - _like(y, outputs)).abs()
    near = error.clamp(max=1.0)
    return _mean(near * (error - near / 2))


def bce(logits: Tensor, y: Tensor) -> Tensor:
    """The binary cross-entropy of logits, the mean over an example's labels.

    As ``z (1/2 - y) + |z| / 2 + log(1 + exp(-|z|))``, which overflows nowhere; with ``max(z, 0)`` for its first half,
    as it is often written, the gradient at 0 would be wrong, where a head of zeros begins.

    Args:
        logits: ``(size, *labels)``.
        y: ``(size, *labels)``, 0 or 1 or between.
    """
    size = logits.abs()
    return _mean(logits * (0.5 - _like(y, logits)) + size / 2 + torch.log1p(torch.exp(-size)))


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the likeliest class is right, the mean over positions."""
    return _mean((logits.argmax(1) == _classes(y, logits)).to(logits.dtype))


def binary_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """The share of an example's labels whose logit has the right sign."""
    return _mean(((logits > 0) == (_like(y, logits) > 0.5)).to(logits.dtype))  # noqa: PLR2004  half way between the labels


def mae(outputs: Tensor, y: Tensor) -> Tensor:
    """The absolute error, the mean over an example's outputs."""
    return _mean((outputs - _like(y, outputs)).abs())


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """``(size, *positions)`` classes as ``(size, classes, *positions)`` zeros and ones, in the dtype of ``like``."""
    classes = torch.arange(like.shape[1], device=like.device).reshape(-1, *[1] * (y.dim() - 1))
    return (y.unsqueeze(1) == classes).to(like.dtype)


def mixed(loss: PerExample, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Several models' outputs as one: the weighted mean of what they stand for.

    Of :func:`cross_entropy` that is the mean of their probabilities, of :func:`bce` that of each label's, both as
    logits again; of everything else the mean of the outputs.

    Args:
        loss: what the outputs are judged by.
        outputs: each ``(size, ...)``.
        weights: ``(len(outputs),)``, which sum to 1.
    """
    each = torch.stack(tuple(outputs))
    shares = weights.reshape(-1, *[1] * (each.dim() - 1))
    if loss is cross_entropy:
        return _log_mean(shares, torch.log_softmax(each, 2))
    if loss is bce:
        return _log_mean(shares, _log_sigmoid(each)) - _log_mean(shares, _log_sigmoid(-each))
    return (shares * each).sum(0)


def classes_of(outputs: Tensor) -> ExampleSpec:
    """The target of a classifier that gives ``(size, classes, *positions)``.

    Raises:
        ExportError: it gives ``(size,)``.
    """
    if outputs.dim() < 2:  # noqa: PLR2004  the minibatch's axis and that of the classes
        raise ExportError(
            "the module gives one number for each example, and classes need one each",
            where="loss",
            remedy="Choose mse or huber for a number, bce for yes or no; for a loss of your own say --target",
        )
    return ExampleSpec(tuple(outputs.shape[2:]), "int64", high=outputs.shape[1])


def numbers_like(outputs: Tensor) -> ExampleSpec:
    """A target of the outputs' own shape."""
    return ExampleSpec(tuple(outputs.shape[1:]))


@dataclass(frozen=True)
class Objective:
    """What a model is trained for.

    Attributes:
        loss: what is minimised.
        target: the target that outputs of a shape call for.
        metrics: what is reported besides, unless the user chooses; all of :data:`METRICS`.
    """

    loss: PerExample
    target: Callable[[Tensor], ExampleSpec]
    metrics: tuple[str, ...] = ()


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "cross_entropy": Objective(cross_entropy, classes_of, ("accuracy",)),
        "mse": Objective(mse, numbers_like, ("mae",)),
        "bce": Objective(bce, numbers_like, ("binary_accuracy",)),
        "huber": Objective(huber, numbers_like, ("mae",)),
    }
)
"""The losses, by name."""

METRICS: Mapping[str, PerExample] = MappingProxyType(
    {
        "accuracy": accuracy,
        "binary_accuracy": binary_accuracy,
        "mae": mae,
        "mse": mse,
    }
)
"""The metrics, by name; lower or higher is better as each says."""


def _like(y: Tensor, outputs: Tensor) -> Tensor:
    """Targets of the outputs' shape: any other would be broadcast, every target against every output."""
    if y.shape != outputs.shape:
        raise ExportError(f"targets {list(y.shape)} for outputs {list(outputs.shape)}", where="loss")
    return y


def _classes(y: Tensor, logits: Tensor) -> Tensor:
    """Classes of the logits' positions."""
    if y.shape != (*logits.shape[:1], *logits.shape[2:]):
        raise ExportError(f"targets {list(y.shape)} for outputs {list(logits.shape)}", where="loss")
    return y


def _log_mean(shares: Tensor, logs: Tensor) -> Tensor:
    """``log(sum_m shares_m exp(logs_m))``, along the first axis, without overflow."""
    terms = torch.log(shares) + logs  # so that the greatest of them, at least, has a share
    most = terms.max(0, keepdim=True).values
    return (torch.log(torch.exp(terms - most).sum(0, keepdim=True)) + most).squeeze(0)


def _log_sigmoid(x: Tensor) -> Tensor:
    return (x - x.abs()) / 2 - torch.log1p(torch.exp(-x.abs()))


def _mean(values: Tensor) -> Tensor:
    """``(size, ...)`` -> ``(size,)``."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values
