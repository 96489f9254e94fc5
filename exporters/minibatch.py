"""The minibatch that an algorithm's device functions see while they are traced or run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.func import grad_and_value

from edgepfl.tree import Tree
from exporters.forward import Forward
from exporters.model import Inputs, Model
from exporters.statistics import Measured


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
        x: inputs, each ``(size, *shape)``.
        y: targets, ``(size, *shape)``.
        weight: ``(size,)``, 0 for padding rows.
        noise: standard normals for dropout; the same for every gradient of a step, so that they differ by their
            parameters alone.
        loss: the value of the first objective that was differentiated, before the step; None if none was.
    """

    def __init__(self, model: Model, x: Inputs, y: Tensor, weight: Tensor, noise: Sequence[Tensor] = ()) -> None:
        self._model = model
        self.x = x
        self.y = y
        self.weight = weight
        self.noise = noise
        self.loss: Tensor | None = None
        self._forward = Forward(weight, noise)

    def grad(self, params: Tree) -> Tree:
        """The gradient at ``params`` of the weighted mean loss over the batch."""
        return self.value_and_grad(self._mean_loss, params)[1]

    def value_and_grad(self, objective: Callable[[Tree], Tensor], params: Tree) -> tuple[Tensor, Tree]:
        """The value and gradient at ``params`` of an objective of the algorithm's own.

        Of a frozen parameter the gradient is 0; the place of a running statistic holds what the pass measured.
        """
        still = {name: params[name] for name in (*self._model.frozen, *self._model.statistics) if name in params}
        moving = {name: tensor for name, tensor in params.items() if name not in still}

        def measured(tensors: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            self._forward = Forward(self.weight, self.noise)
            return objective(Tree({**still, **tensors})), self._forward.moved

        gradient, (value, moved) = grad_and_value(measured, has_aux=True)(moving)
        if self.loss is None:
            self.loss = value
        statistics = {name: Measured(tensor) for name, tensor in moved.items()}
        zeros = {name: tensor.new_zeros(tensor.shape) for name, tensor in still.items()}
        return value, Tree({**zeros, **gradient, **statistics})

    def _mean_loss(self, params: Tree) -> Tensor:
        return weighted_mean(self._model.loss(self._model.outputs(params, self.x, self._forward), self.y), self.weight)
