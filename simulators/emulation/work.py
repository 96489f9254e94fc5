"""What a scenario trains: its data, its model by name, and the bundle of both with an algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from coordinator.config import RunConfig
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from exporters import zoo
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model
from exporters.source import Wanted, load_model
from simulators.arguments import settings_for
from simulators.datasets import FleetData, load
from simulators.emulation.scenario import Scenario, WorkTable
from simulators.experiment import HEAD

Make: TypeAlias = Callable[[tuple[int, ...], int, int, int], Model]
"""A model from an example's shape, the number of classes, the rows of a minibatch, and a seed."""

WIDE = 128  # hidden units of mlp-9k: with 60 inputs and 10 classes 9,098 parameters
SERIES = {"channels": 6}
"""The option that lets random data suit a model of time series."""


def _mlp(shape: tuple[int, ...], classes: int, batch: int, seed: int) -> Model:
    return zoo.mlp(inputs=math.prod(shape), classes=classes, batch=batch, seed=seed)


def _mlp_9k(shape: tuple[int, ...], classes: int, batch: int, seed: int) -> Model:
    return zoo.mlp(inputs=math.prod(shape), hidden=WIDE, classes=classes, batch=batch, seed=seed)


def _cnn1d(shape: tuple[int, ...], classes: int, batch: int, seed: int) -> Model:
    if len(shape) != 2:  # noqa: PLR2004  channels and length
        raise ConfigError(
            f"it takes series, and an example of the data has the shape {list(shape)}",
            where="model cnn1d",
            remedy="Name data of series, such as watch or random,channels=6",
        )
    channels, length = shape
    return zoo.cnn1d(channels=channels, length=length, classes=classes, batch=batch, seed=seed)


MODELS: Mapping[str, Make] = MappingProxyType({"mlp-9k": _mlp_9k, "mlp": _mlp, "cnn1d": _cnn1d})
"""The models that take the sizes of the data; the zoo's others have their own."""


def data_of(scenario: Scenario) -> FleetData:
    """The fleet's data.

    Raises:
        ConfigError: there is no such data, option or partition.
        DataError: it cannot be fetched or read.
    """
    work = scenario.work
    options = dict(work.options)
    if work.data == "random" and work.model == "cnn1d":
        options = {**SERIES, **options}
    return load(
        work.data,
        devices=scenario.fleet.agents,
        seed=scenario.seed,
        partition=work.partition,
        drift=work.drift,
        **options,
    )


def model_named(name: str, data: FleetData, batch: int, seed: int) -> Model:
    """A model by name, in the sizes of the data.

    Raises:
        ConfigError: there is no such model, or it does not suit the data.
    """
    if ":" in name:
        return load_model(Wanted(name, batch=batch, seed=seed))
    name = name or data.model
    classes = len(data.classes)
    if name in MODELS:
        return MODELS[name](data.input_shape, classes, batch, seed)
    if name in zoo.ZOO:
        return zoo.ZOO[name](batch=batch, seed=seed)
    known = ", ".join(dict.fromkeys([*MODELS, *zoo.ZOO]))
    raise ConfigError(f"there is no model {name!r}", where="model", remedy=f"Name one of {known}, or MODULE:FACTORY")


def bundle_of(scenario: Scenario, data: FleetData, runtimes: tuple[str, ...] = ("onnx",)) -> Bundle:
    """The bundle of a scenario's algorithm on its model.

    Graphs that were built once are used again in the same process; only the initial parameters follow from the seed.

    Args:
        scenario: with the work.
        data: the fleet's.
        runtimes: that the devices have.

    Raises:
        ConfigError: there is no such algorithm, hyperparameter or model.
        ExportError: they cannot become graphs.
    """
    model = _fitted(scenario.work, data, scenario.seed)[1]  # first: it refuses what cannot be
    words = msgspec.json.encode(msgspec.structs.replace(scenario.work, options={}, partition="", drift=""))
    bundle = _built(words, (data.input_shape, data.classes, data.model), runtimes)
    return msgspec.structs.replace(bundle, model=model.parameters.map(lambda tensor: tensor.detach().numpy().copy()))


def config_of(scenario: Scenario) -> RunConfig:
    """The run's settings: those of the scenario, and its seed where they have none of their own."""
    run = scenario.run
    return run if run.seed else msgspec.structs.replace(run, seed=scenario.seed)


@lru_cache(16)
def _built(words: bytes, form: tuple[tuple[int, ...], tuple[str, ...], str], runtimes: tuple[str, ...]) -> Bundle:
    shape, classes, model = form
    work = msgspec.json.decode(words, type=WorkTable)
    algorithm, fit = _fitted(work, FleetData("", {}, shape, classes, model), 0)
    return build(algorithm, fit, runtimes=runtimes)


def _fitted(work: WorkTable, data: FleetData, seed: int) -> tuple[Algorithm, Model]:
    algorithm = algorithms.build(work.algorithm, settings_for(work.algorithm, work.settings))
    model = model_named(work.model, data, work.batch, seed)
    return algorithm, fitted(algorithm, model, own=HEAD, seed=seed)
