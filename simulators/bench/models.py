"""The models that a step is measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from exporters import zoo
from exporters.model import Model, model_of, seeded


def cnn(batch: int) -> Model:
    """Two convolutions and two linear layers for pictures of 28 x 28: 80,202 parameters."""
    module = seeded(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10)),
        ),
        0,
    )
    return model_of(module, [(1, 28, 28)], batch=batch, title="cnn")


def _of_zoo(make: Callable[..., Model]) -> Callable[[int], Model]:
    return lambda batch: make(batch=batch)


DEFAULT = ("mlp-60-128-10", "mlp-784-1024-400-10", "cnn", "cnn1d")
"""What is measured unless somebody says otherwise."""

MODELS: Mapping[str, Callable[[int], Model]] = MappingProxyType(
    {
        "mlp-60-128-10": lambda batch: zoo.mlp(inputs=60, hidden=128, batch=batch),
        "mlp-784-1024-400-10": lambda batch: zoo.mlp(inputs=784, hidden=(1024, 400), batch=batch),
        "cnn": cnn,
        **{name: _of_zoo(make) for name, make in zoo.ZOO.items()},
    }
)
"""Name to what makes the model for a batch size."""
