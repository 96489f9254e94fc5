"""A small vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from exporters.model import Model, model_of, seeded


class VisionTransformer(nn.Module):
    """Patches as tokens, pre-norm encoder layers, the mean of the tokens: Dosovitskiy et al. 2021, made tiny."""

    def __init__(
        self, channels: int = 3, size: int = 32, classes: int = 10, patch: int = 8, width: int = 48, depth: int = 2
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, classes)``."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.layers(tokens)).mean(1))  # type: ignore[no-any-return]  # torch's modules are untyped callables


def vit(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`VisionTransformer` as a model."""
    module = seeded(lambda: VisionTransformer(channels, size, classes), seed)
    title = f"vit {channels}x{size}x{size}-{classes}"
    return model_of(module, [(channels, size, size)], batch=batch, personal=personal, title=title)
