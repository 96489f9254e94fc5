"""Models to begin with: one for flat features, one for windows of sensor samples.

The last layer of each is called ``head``, so ``--personal 'head.*'`` keeps it on the device.
"""

from __future__ import annotations

from torch import Tensor, nn

from exporters.model import Model, seeded


class Mlp(nn.Module):
    """``inputs -> hidden -> classes`` with ReLU between, for scikit-learn's digits by default."""

    def __init__(self, inputs: int = 64, hidden: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, inputs)`` -> ``(batch, classes)``."""
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]  # torch's modules are untyped callables


class Cnn1d(nn.Module):
    """Two convolutions along time and a linear head: 7,287 parameters for six channels, 100 samples, seven classes.

    No normalisation layer: batch statistics are no one device's own, and the network is too small to need one.
    """

    def __init__(self, channels: int = 6, length: int = 100, classes: int = 7) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, 32, 7)
        self.pool1 = nn.MaxPool1d(4)
        self.conv2 = nn.Conv1d(32, 24, 7)
        self.pool2 = nn.MaxPool1d(5)
        self.head = nn.Linear(24 * (((length - 6) // 4 - 6) // 5), classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, length)`` -> ``(batch, classes)``."""
        x = self.pool1(self.conv1(x).relu())
        x = self.pool2(self.conv2(x).relu())
        return self.head(x.flatten(1))  # type: ignore[no-any-return]  # torch's modules are untyped callables


def mlp(
    *,
    inputs: int = 64,
    hidden: int = 64,
    classes: int = 10,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`Mlp` as a model."""
    module = seeded(lambda: Mlp(inputs, hidden, classes), seed)
    return Model(module, (inputs,), classes, batch, personal=personal, title=f"mlp {inputs}-{hidden}-{classes}")


def cnn1d(
    *,
    channels: int = 6,
    length: int = 100,
    classes: int = 7,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`Cnn1d` as a model."""
    module = seeded(lambda: Cnn1d(channels, length, classes), seed)
    title = f"cnn1d {channels}x{length}-{classes}"
    return Model(module, (channels, length), classes, batch, personal=personal, title=title)
