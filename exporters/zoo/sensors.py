"""Networks for windows of sensor samples."""

from __future__ import annotations

from torch import Tensor, nn

from exporters.model import Model, model_of, seeded
from exporters.zoo.blocks import Residual


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


class Tcn(nn.Module):
    """Dilated causal convolutions with residuals: Bai et al. 2018, without weight normalisation."""

    def __init__(self, channels: int = 6, classes: int = 7, width: int = 24, kernel: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv1d(channels, width, 1)
        self.blocks = nn.Sequential(*(Residual(_causal(width, kernel, dilation)) for dilation in (1, 2, 4, 8)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, length)`` -> ``(batch, classes)``, from the mean over time."""
        return self.head(self.blocks(self.stem(x)).mean(2))  # type: ignore[no-any-return]  # likewise


def _causal(width: int, kernel: int, dilation: int) -> nn.Sequential:
    """Padding in front alone: no sample sees a later one."""
    pad = nn.ConstantPad1d(((kernel - 1) * dilation, 0), 0.0)
    return nn.Sequential(pad, nn.Conv1d(width, width, kernel, dilation=dilation), nn.ReLU())


class GruNet(nn.Module):
    """A strided convolution and a GRU over what it leaves of time, as DeepConvLSTM has it: Ordonez and Roggen 2016."""

    def __init__(self, channels: int = 6, classes: int = 7, width: int = 32) -> None:
        super().__init__()
        self.front = nn.Conv1d(channels, width, 8, stride=4)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, length)`` -> ``(batch, classes)``, from the last state."""
        states, _ = self.gru(self.front(x).relu().transpose(1, 2))
        return self.head(states[:, -1])  # type: ignore[no-any-return]  # likewise


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
    return model_of(module, [(channels, length)], batch=batch, personal=personal, title=title)


def tcn(
    *,
    channels: int = 6,
    length: int = 100,
    classes: int = 7,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`Tcn` as a model."""
    module = seeded(lambda: Tcn(channels, classes), seed)
    title = f"tcn {channels}x{length}-{classes}"
    return model_of(module, [(channels, length)], batch=batch, personal=personal, title=title)


def gru(
    *,
    channels: int = 6,
    length: int = 100,
    classes: int = 7,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`GruNet` as a model."""
    module = seeded(lambda: GruNet(channels, classes), seed)
    title = f"gru {channels}x{length}-{classes}"
    return model_of(module, [(channels, length)], batch=batch, personal=personal, title=title)
