"""The network."""

from __future__ import annotations

from torch import Tensor, nn

from wristband.recordings import AXES, GESTURES


class GestureNet(nn.Module):
    """A wrist's mean acceleration and rotation to one of the gestures."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(AXES, 24), nn.Tanh())
        self.head = nn.Linear(24, GESTURES)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, AXES)`` -> ``(batch, GESTURES)``."""
        scores: Tensor = self.head(self.body(x))
        return scores
