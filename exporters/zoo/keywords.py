"""A network for keyword spotting."""

from __future__ import annotations

from torch import Tensor, nn

from exporters.model import Model, model_of, seeded
from exporters.zoo.blocks import Norm, conv2d


class DsCnn(nn.Module):
    """Depthwise separable convolutions over a spectrogram: Zhang et al. 2017, "Hello Edge", DS-CNN.

    The input is 49 frames of 10 cepstral coefficients, one second of speech.
    """

    def __init__(self, classes: int = 12, width: int = 64, blocks: int = 4, norm: Norm = "batch") -> None:
        super().__init__()
        self.stem = nn.Sequential(conv2d(norm, 1, width, (10, 4), stride=2), nn.ReLU())
        self.blocks = nn.Sequential(*(_separable(norm, width) for _ in range(blocks)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, 1, frames, coefficients)`` -> ``(batch, classes)``."""
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))  # type: ignore[no-any-return]  # torch's modules are untyped callables


def _separable(norm: Norm, width: int) -> nn.Sequential:
    depthwise = conv2d(norm, width, width, 3, groups=width)
    return nn.Sequential(depthwise, nn.ReLU(), conv2d(norm, width, width, 1), nn.ReLU())


def ds_cnn(
    *,
    frames: int = 49,
    coefficients: int = 10,
    classes: int = 12,
    width: int = 64,
    norm: Norm = "batch",
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`DsCnn` as a model."""
    module = seeded(lambda: DsCnn(classes, width, norm=norm), seed)
    title = f"ds-cnn {frames}x{coefficients}-{classes}, {norm} norm"
    return model_of(module, [(1, frames, coefficients)], batch=batch, personal=personal, title=title)
