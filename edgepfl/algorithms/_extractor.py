"""Which body a device predicts with where only bodies are averaged."""

from __future__ import annotations

from enum import StrEnum


class EvalExtractor(StrEnum):
    """Whose body a device's head is put on for evaluation, tuning and prediction."""

    GLOBAL = "global"  # the one that the device was sent last
    LOCAL = "local"  # the one that it trained last, as the authors of FedCR do
