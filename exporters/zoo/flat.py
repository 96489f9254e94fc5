"""Multi-layer perceptrons, for flat features."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from exporters.model import Model, model_of, seeded


class Mlp(nn.Module):
    """``inputs -> hidden ... -> classes`` with ReLU between, for scikit-learn's digits by default.

    Without a hidden layer it is softmax regression.
    """

    def __init__(self, inputs: int = 64, hidden: int | tuple[int, ...] = 64, classes: int = 10) -> None:
        super().__init__()
        widths = (inputs, *((hidden,) if isinstance(hidden, int) else hidden))
        self.names = ["body", *(f"body{i}" for i in range(2, len(widths)))][: len(widths) - 1]
        for name, (before, after) in zip(self.names, itertools.pairwise(widths), strict=True):
            self.add_module(name, nn.Linear(before, after))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, inputs)`` -> ``(batch, classes)``."""
        for name in self.names:
            x = self.get_submodule(name)(x).relu()
        return self.head(x)  # type: ignore[no-any-return]  # torch's modules are untyped callables


def mlp(
    *,
    inputs: int = 64,
    hidden: int | tuple[int, ...] = 64,
    classes: int = 10,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`Mlp` as a model."""
    module = seeded(lambda: Mlp(inputs, hidden, classes), seed)
    widths = (inputs, *((hidden,) if isinstance(hidden, int) else hidden), classes)
    title = f"mlp {'-'.join(map(str, widths))}"
    return model_of(module, [(inputs,)], batch=batch, personal=personal, title=title)
