"""The minibatch that an algorithm's device functions see while they are traced or run eagerly."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.func import grad_and_value

from edgepfl.tree import Tree
from exporters.model import Model


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """``sum(w v) / sum(w)``, and 0 where every weight is 0.

    Args:
        values: ``(size,)``.
        weight: ``(size,)``.
    """
    total = weight.sum()
    return (weight * values).sum() / (total + (total == 0).to(total.dtype))


class ModelMinibatch:
    """A minibatch of one model: :class:`edgepfl.algorithms.Minibatch` through ``torch.func``.

    Attributes:
        x: inputs, ``(size, *input)``.
        y: targets, int64 ``(size,)``.
        weight: ``(size,)``, 0 for padding rows.
        loss: the value of the first objective that was differentiated, before the step; None if none was.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor, weight: Tensor) -> None:
        self._model = model
        self.x = x
        self.y = y
        self.weight = weight
        self.loss: Tensor | None = None

    def grad(self, params: Tree) -> Tree:
        """The gradient at ``params`` of the weighted mean loss over the batch."""
        return self.value_and_grad(self._mean_loss, params)[1]

    def value_and_grad(self, objective: Callable[[Tree], Tensor], params: Tree) -> tuple[Tensor, Tree]:
        """The value and gradient at ``params`` of an objective of the algorithm's own."""
        gradient, value = grad_and_value(lambda tensors: objective(Tree(tensors)))(dict(params))
        if self.loss is None:
            self.loss = value
        return value, Tree(gradient)

    def _mean_loss(self, params: Tree) -> Tensor:
        return weighted_mean(self._model.losses(self._model.outputs(params, self.x), self.y), self.weight)
