"""The model to export: a module, what goes in, and how its outputs are judged."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import TensorSpec, TensorSpecs
from edgepfl.tree import Tree

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs ``(size, ...)``, targets ``(size,)``) -> the loss of each example, ``(size,)``."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood of each example's class.

    A product with a one-hot matrix, not ``nll_loss``: that one's translation to ONNX gave gradients that were batch
    size times too large.

    Args:
        logits: ``(size, classes)``.
        y: int64 ``(size,)``, the classes.

    Returns:
        ``(size,)``.
    """
    return -(torch.log_softmax(logits, 1) * one_hot(y, logits)).sum(1)


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """``(size,)`` classes as ``(size, classes)`` zeros and ones, in the dtype of ``like``."""
    return (y.unsqueeze(1) == torch.arange(like.shape[1])).to(like.dtype)


LOSSES: Mapping[str, Loss] = MappingProxyType({"cross_entropy": cross_entropy})
"""The losses, by name."""


@dataclass(frozen=True)
class Model:
    """A classifier to train on devices.

    The module is exported as it stands: one in training mode may hold neither batch normalisation nor dropout.

    Attributes:
        module: gives ``(batch, classes)`` for ``(batch, *input)``.
        input: the shape of one example.
        classes: how many there are.
        batch: rows of a minibatch; static, short ones are padded with rows of weight 0.
        loss: a name in :data:`LOSSES`.
        personal: shell-style patterns of the parameters that stay on the device, such as ``head.*``.
        title: the model's name, for people.
    """

    module: nn.Module
    input: tuple[int, ...]
    classes: int
    batch: int = 16
    loss: str = "cross_entropy"
    personal: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError(f"there is no loss {self.loss!r}", remedy=f"Choose one of {', '.join(LOSSES)}")
        sizes = {"input": min(self.input, default=1), "classes": self.classes, "batch": self.batch}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{size} will not do, it must be at least 1", where=name)

    @property
    def parameters(self) -> Tree:
        """The initial parameters, by name; copies."""
        return Tree({name: tensor.detach().clone() for name, tensor in self.module.named_parameters()})

    @property
    def specs(self) -> TensorSpecs:
        """The shapes of the parameters, by name."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self.module.named_parameters()}
        return {name: TensorSpec(shapes[name]) for name in sorted(shapes)}

    @property
    def personal_names(self) -> tuple[str, ...]:
        """The parameters that a personal pattern matches.

        Raises:
            ExportError: a pattern matches none.
        """
        names = list(self.specs)
        for pattern in self.personal:
            if not fnmatch.filter(names, pattern):
                raise ExportError(
                    f"no parameter matches {pattern!r}",
                    where="personal",
                    remedy=f"The model has {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}",  # noqa: PLR2004
                )
        return tuple(name for name in names if any(fnmatch.fnmatchcase(name, p) for p in self.personal))

    def outputs(self, params: Tree, x: Tensor) -> Tensor:
        """What the module gives for ``x`` with these parameters in place of its own.

        Raises:
            ExportError: other parameters than the module's; its own would silently stand in for missing ones.
        """
        if apart := params.keys() ^ self.specs.keys():
            raise ExportError(
                f"the model is asked for with other parameters than its own: {', '.join(sorted(apart)[:4])}",
                where=self.title or type(self.module).__name__,
            )
        outputs: Tensor = functional_call(self.module, dict(params), (x,))
        return outputs

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each example, ``(size,)``."""
        return LOSSES[self.loss](outputs, y)

    def to(self, dtype: torch.dtype) -> Model:
        """This model with its parameters and buffers in another floating-point type."""
        return Model(
            copy.deepcopy(self.module).to(dtype),
            self.input,
            self.classes,
            self.batch,
            self.loss,
            self.personal,
            self.title,
        )


Made = TypeVar("Made")


def seeded(factory: Callable[[], Made], seed: int) -> Made:
    """What ``factory`` makes when torch's generator starts from ``seed``, which it does not disturb."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
