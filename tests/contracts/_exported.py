"""Every algorithm on a tiny model, exported once in a test session, and the data of three devices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from _once import once

from coordinator.updater import Settings
from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Setting
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.plan import Shape
from edgepfl.seeds import generator
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model
from exporters.zoo import mlp

EVERY = algorithms.names()
INPUTS, HIDDEN, CLASSES, BATCH = 6, 5, 3, 4
HEAD = ("head.*",)


@dataclass(frozen=True)
class Exported:
    """One algorithm on one model.

    Attributes:
        algorithm: as it was exported.
        model: likewise.
        data: the bundle file.
        bundle: what a device reads from it.
    """

    algorithm: Algorithm
    model: Model
    data: bytes
    bundle: Bundle

    def settings(self, **others: float | str) -> Settings:
        """Large learning rates, so that three rounds go far; everything else as exported, but for ``others``."""
        return {**dict.fromkeys(rates(self), 0.25), **others}


def rates(exported: Exported) -> list[str]:
    """The runtime hyperparameters that are learning rates."""
    return [name for name in exported.bundle.plan.hyper if name == "lr" or name.endswith("_lr")]


@functools.cache
def exported(
    name: str,
    personal: tuple[str, ...] | None = None,
    *,
    options: tuple[tuple[str, Setting], ...] = (),
    runtimes: tuple[str, ...] = ("onnx",),
) -> Exported:
    """An algorithm's bundle, with some of its hyperparameters set.

    The head is personal where the algorithm has a personal part, unless told otherwise.
    """
    algorithm = algorithms.build(name, dict(options))
    parts = {slot.shape for slot in algorithm.declared().values()}
    own = algorithm.personal_default or (HEAD if parts & {Shape.SHARED, Shape.PERSONAL} else ())
    plain = mlp(inputs=INPUTS, hidden=HIDDEN, classes=CLASSES, batch=BATCH, personal=own)
    model = fitted(algorithm, plain) if personal is None else dataclasses.replace(plain, personal=personal)
    data = once(repr((name, personal, options, runtimes)), lambda: pack(build(algorithm, model, runtimes=runtimes)))
    return Exported(algorithm, model, data, unpack(data))


def examples(name: str, train: int, test: int) -> Examples:
    """Noisy classes that each device sees shifted in its own way."""
    rng = generator(0, "examples", name)
    centres = 2 * generator(0, "centres").standard_normal((CLASSES, INPUTS)) + rng.standard_normal(INPUTS)
    y = rng.integers(0, CLASSES, train + test)
    x = (centres[y] + rng.standard_normal((train + test, INPUTS))).astype(np.float32)
    return Examples(x[:train], y[:train], x[train:], y[train:])


DEVICES: Mapping[str, Examples] = {
    "pi-1": examples("pi-1", 10, 7),  # no number is a multiple of the batch, so that every epoch and every
    "pi-2": examples("pi-2", 7, 5),  # evaluation has padding rows
    "pi-3": examples("pi-3", 13, 6),
}
