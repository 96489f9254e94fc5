"""Every algorithm on a tiny model, exported once in a test session, and the data of three devices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from _graphs_once import graphs_exported_once
from _once import once

from coordinator import updater
from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Setting, has, hyperparameters
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry, Shape
from edgepfl.seeds import generator
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model
from exporters.representation import gaussian
from exporters.zoo import mlp

EVERY = algorithms.names()
RUNTIMES = ("onnx", "executorch")
INPUTS, HIDDEN, CLASSES, BATCH = 6, 5, 3, 4
HEAD = ("head.*",)
LARGE = 0.25
LETTERS = {"perfedavg": ("alpha", "beta"), "pfedbred": ("eta_a",)}
"""Learning rates that go by their papers' letters."""

Options = tuple[tuple[str, Setting], ...]


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

    def settings(self, **others: float | str) -> updater.Settings:
        """Large learning rates, so that three rounds go far; everything else as exported, but for ``others``.

        Where a theory forbids steps as large as :data:`LARGE`, halves, quarters and so on.
        """
        for rate in (LARGE * 0.5**halvings for halvings in itertools.count()):
            settings = {**dict.fromkeys(rates(self), rate), **others}
            try:
                updater.algorithm_of(self.bundle.plan, settings)
            except ConfigError:
                if rate < LARGE / 100:
                    raise
            else:
                return settings
        raise AssertionError


def rates(exported: Exported) -> list[str]:
    """The runtime hyperparameters that are learning rates."""
    plan = exported.bundle.plan
    letters = LETTERS.get(plan.algorithm, ())
    return [name for name in plan.hyper if name == "lr" or name.endswith("_lr") or name in letters]


@functools.cache
def exported(
    name: str,
    personal: tuple[str, ...] | None = None,
    *,
    options: Options = (),
    runtimes: tuple[str, ...] = ("onnx",),
    represented: bool = False,
) -> Exported:
    """An algorithm's bundle.

    Args:
        name: of the algorithm.
        personal: patterns of the parameters that stay on the device; unless given, the head where the algorithm has a
            personal part, or what it takes itself where a user names none.
        options: hyperparameters that shape the graphs.
        runtimes: which graphs to export.
        represented: whether the model represents its inputs by normal distributions, as FedCR's must.
    """
    algorithm = algorithms.build(name, dict(options))
    model = _model(algorithm, personal, represented=represented)
    key = repr((name, personal, options, runtimes, represented))
    with graphs_exported_once():
        data = once(key, lambda: pack(build(algorithm, model, runtimes=runtimes)))
    return Exported(algorithm, model, data, unpack(data))


def _model(algorithm: Algorithm, personal: tuple[str, ...] | None, *, represented: bool) -> Model:
    parts = {slot.shape for slot in algorithm.declared().values()}
    own = algorithm.personal_default or (HEAD if parts & {Shape.SHARED, Shape.PERSONAL} else ())
    plain = mlp(inputs=INPUTS, hidden=HIDDEN, classes=CLASSES, batch=BATCH, personal=own)
    if represented:
        plain = dataclasses.replace(gaussian(plain), personal=own)
    return fitted(algorithm, plain) if personal is None else dataclasses.replace(plain, personal=personal)


def _variants() -> Iterator[tuple[str, Options]]:
    for name in EVERY:
        usual = algorithms.build(name, {})
        for option, role in hyperparameters(type(usual)).items():
            if role == "fixed" and (option != "inner_steps" or has(type(usual), Entry.INNER)):
                yield from ((name, ((option, value),)) for value in others(getattr(usual, option)))


def others(usual: object) -> list[Setting]:
    """Every other value of an enumeration or a truth value; one of a whole number."""
    match usual:
        case StrEnum():
            return [str(value) for value in type(usual) if value is not usual]
        case bool():
            return [not usual]
        case int():
            return [usual - 1 if usual > 1 else usual + 1]
        case _:
            raise TypeError(f"{usual!r} is no choice and no whole number")


VARIANTS = tuple(_variants())
"""Each algorithm with each option that shapes its graphs at each other value."""


def label(variant: tuple[str, Options]) -> str:
    """A variant's name in a test's."""
    name, options = variant
    return "-".join([name, *(f"{option}={value}" for option, value in options)])


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
