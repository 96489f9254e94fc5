"""The minibatch that an algorithm's device functions see while they are traced or run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.func import grad_and_value

from edgepfl.errors import ExportError
from edgepfl.tree import Tree
from exporters.forward import Forward
from exporters.model import Inputs, Model
from exporters.objectives import mixed
from exporters.representation import judge_head, represent
from exporters.statistics import Measured


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """``sum(w v) / sum(w)``, and 0 where every weight is 0.

    Args:
        values: ``(size,)``.
        weight: ``(size,)``.
    """
    total = weight.sum()
    return (weight * values).sum() / (total + (total == 0).to(total.dtype))


class Pass:
    """Inputs on their way through one model, predicting: :class:`edgepfl.algorithms.Predicting`.

    Args:
        model: the model.
        x: inputs, each ``(size, *shape)``.
    """

    def __init__(self, model: Model, x: Inputs) -> None:
        self._model = model
        self.x = x

    def outputs(self, params: Tree) -> Tensor:
        """What the module gives, ``(size, ...)``."""
        return self._model.outputs(params, self.x, self._begin())

    def mixture(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Several models' outputs as one, as the loss calls for: see :func:`exporters.objectives.mixed`."""
        return mixed(self._model.loss, outputs, weights)

    def represent(self, params: Tree) -> tuple[Tensor, Tensor]:
        """Means and raw scales of the representations, ``(size, width)`` each."""
        return represent(self._model, params, self.x, self._begin())

    def judge_head(self, params: Tree, z: Tensor) -> Tensor:
        """What the head gives for representations ``(size, width)``."""
        return judge_head(self._model, params, z, self._current())

    def _begin(self) -> Forward | None:
        """A new pass."""
        return None

    def _current(self) -> Forward | None:
        """The pass that goes on."""
        return None


class ModelMinibatch(Pass):
    """A minibatch of one model: :class:`edgepfl.algorithms.Minibatch` through ``torch.func``.

    Attributes:
        x: inputs, each ``(size, *shape)``.
        y: targets, ``(size, *shape)``.
        weight: ``(size,)``, 0 for padding rows.
        noise: standard normals for dropout; the same for every pass of a step, so that passes differ by their
            parameters alone.
        loss: the value of the first objective that was differentiated, before the step; None if none was.
    """

    def __init__(
        self,
        model: Model,
        x: Inputs,
        y: Tensor,
        weight: Tensor,
        noise: Sequence[Tensor] = (),
        losses: list[Tensor] | None = None,
    ) -> None:
        super().__init__(model, x)
        self.y = y
        self.weight = weight
        self.noise = noise
        self._first: list[Tensor] = [] if losses is None else losses
        self._forward = Forward(weight, noise)

    @property
    def loss(self) -> Tensor | None:
        """See the class."""
        return self._first[0] if self._first else None

    def losses(self, outputs: Tensor) -> Tensor:
        """The loss of each row, ``(size,)``."""
        return self._model.loss(outputs, self.y)

    def mean(self, values: Tensor) -> Tensor:
        """The weighted mean of ``(size,)``, and 0 where every row is padding."""
        return weighted_mean(values, self.weight)

    def parts(self, count: int) -> tuple[ModelMinibatch, ...]:
        """Disjoint minibatches that together are this one; every ``count``-th row, so that padding spreads over all.

        Raises:
            ExportError: it has fewer rows.
        """
        if count > len(self.weight):
            raise ExportError(
                f"a minibatch of {len(self.weight)} cannot be parted in {count}",
                where="batch",
                remedy=f"Export with --batch {count} or more",
            )
        return tuple(self._part(slice(place, None, count)) for place in range(count))

    def grad(self, params: Tree) -> Tree:
        """The gradient at ``params`` of the weighted mean loss over the batch."""
        return self.value_and_grad(self._mean_loss, params)[1]

    def value_and_grad(self, objective: Callable[[Tree], Tensor], params: Tree) -> tuple[Tensor, Tree]:
        """The value and gradient at ``params`` of an objective of the algorithm's own.

        Of a frozen parameter the gradient is 0; the place of a running statistic holds what the pass measured.
        ``params`` may come from a step along such a gradient.
        """
        params = params.map(lambda tensor: tensor.resolved() if isinstance(tensor, Measured) else tensor)
        still = {name: params[name] for name in (*self._model.frozen, *self._model.statistics) if name in params}
        moving = {name: tensor for name, tensor in params.items() if name not in still}

        def measured(tensors: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            self._begin()
            return objective(Tree({**still, **tensors})), self._forward.moved

        gradient, (value, moved) = grad_and_value(measured, has_aux=True)(moving)
        if not self._first:
            self._first.append(value)
        statistics = {name: Measured(tensor) for name, tensor in moved.items()}
        zeros = {name: tensor.new_zeros(tensor.shape) for name, tensor in still.items()}
        return value, Tree({**zeros, **gradient, **statistics})

    def _mean_loss(self, params: Tree) -> Tensor:
        return self.mean(self.losses(self.outputs(params)))

    def _part(self, rows: slice) -> ModelMinibatch:
        return ModelMinibatch(
            self._model,
            tuple(x[rows] for x in self.x),
            self.y[rows],
            self.weight[rows],
            [self._share(each, rows) for each in self.noise],
            self._first,
        )

    def _share(self, noise: Tensor, rows: slice) -> Tensor:
        """The noise of some rows, of which a layer may have several entries each, one after another, on its first axis.

        What is drawn once for the whole minibatch, or with other axes first, stays whole; a layer for which that is
        wrong refuses it.
        """
        size = len(self.weight)
        if not noise.dim() or noise.shape[0] % size:
            return noise
        return noise.reshape(size, -1, *noise.shape[1:])[rows].flatten(0, 1)

    def _begin(self) -> Forward:
        self._forward = Forward(self.weight, self.noise)
        return self._forward

    def _current(self) -> Forward:
        return self._forward
