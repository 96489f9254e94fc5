"""The test's own model and data, as an emulation takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import nn

from device_agent.data import Examples, named
from device_agent.sources import examples_of
from edgepfl import algorithms
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.plan import ExampleSpec
from exporters.build import build
from exporters.fitting import fitted
from exporters.model import Model, model_of, seeded
from simulators.arguments import settings_for
from simulators.datasets import FleetData
from simulators.datasets._base import device_names
from simulators.datasets.own import understood
from simulators.datasets.pool import Pool
from simulators.datasets.registry import TRAIN_FRACTION
from simulators.emulation import Given
from simulators.emulation import work as emulated_work
from simulators.emulation.gear import lives_of, runtimes_of
from simulators.emulation.scenario import WorkTable
from simulators.experiment import HEAD
from simulators.partition_choice import Iid, Partition
from simulators.pytest_plugin.markers import Setup


def given_of(setup: Setup) -> Given:
    """The test's own things in the form that an emulation takes.

    Raises:
        ConfigError: the model or the data are of a kind that nobody knows what to do with.
        DataError: the data are unusable.
        ExportError: the model cannot become a graph.
    """
    scenario, own = setup.scenario, setup.own
    work, devices, seed = scenario.work, scenario.fleet.agents, scenario.seed
    data = None
    if "data" in own:
        data = data_of(own["data"], devices=devices, seed=seed, partition=work.partition, options=work.options)
    if "model" not in own:
        return Given(data=data)
    shapes = data or emulated_work.data_of(scenario)
    runtimes = runtimes_of(lives_of(scenario.fleet, tuple(shapes.devices), seed))
    bundle = bundle_of(own["model"], shapes, work, seed=seed, runtimes=runtimes)
    return Given(data=data, bundle=bundle)


def data_of(
    given: object,
    *,
    devices: int,
    seed: int,
    partition: str = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> FleetData:
    """A fleet's data.

    Args:
        given: arrays ``(x, y)`` that are dealt out; or a mapping of device names to examples; or
            :class:`~simulators.datasets.FleetData`; or a function that gives one of these; or a function with a
            parameter ``device`` that gives one device's, as the data plug-in of a real agent does.  Examples are an
            :class:`~device_agent.data.Examples`, a mapping with ``train_x``, ``train_y``, ``test_x`` and ``test_y``, or
            a tuple of these.  Functions are told ``device``, ``devices`` and ``seed`` if they have such parameters.
        devices: how many.
        seed: of everything random.
        partition: how ``(x, y)`` is dealt out, such as "dirichlet:0.3"; empty: by chance.
        options: further keyword arguments of a function.

    Raises:
        ConfigError: it is of another number of devices.
        DataError: it is something else, or a device's examples are unusable.
    """
    found = _called(given, devices, seed, options) if callable(given) else given
    if isinstance(found, Mapping) and found:
        found = _described({str(name): examples_of(each, f"data of {name}") for name, each in found.items()})
    dealt = understood(found, "own")
    if isinstance(dealt, Pool):
        dealt = dealt.deal(Partition.parse(partition) if partition else Partition(Iid()), devices, seed, TRAIN_FRACTION)
    if len(dealt.devices) != devices:
        raise ConfigError(
            f"it is of {len(dealt.devices)} devices, and the fleet has {devices}",
            where="data",
            remedy=f"Say agents={len(dealt.devices)}, or give data of {devices} devices",
        )
    return dealt


def _called(function: Callable[..., object], devices: int, seed: int, options: Mapping[str, Any]) -> object:
    takes = inspect.signature(function).parameters
    known = {name: value for name, value in (("devices", devices), ("seed", seed)) if name in takes}
    if "device" not in takes:
        return function(**known, **options)
    return {name: function(device=name, **known, **options) for name in device_names(devices)}


def _described(devices: dict[str, Examples]) -> FleetData:
    """The description that follows from the examples themselves: of the first device's shapes, and all labels."""
    first = next(iter(devices.values()))
    inputs = [x for _, x in named("train_x", first.train_x)]
    labels = first.train_y.dtype.kind in "iu"
    most = max(
        (int(np.max(y)) for e in devices.values() for y in (e.train_y, e.test_y) if y.size and labels), default=0
    )
    classes = tuple(f"class {number}" for number in range(most + 1)) if labels else ()
    return FleetData("own", devices, inputs[0].shape[1:], classes, "mlp")


def bundle_of(
    given: object, data: FleetData, work: WorkTable, *, seed: int = 0, runtimes: tuple[str, ...] = ("onnx",)
) -> Bundle:
    """The bundle of an own model.

    Args:
        given: as :func:`model_for` has it.
        data: what it is trained on.
        work: the algorithm and its settings.
        seed: of parameters, where a function makes the model.
        runtimes: to export for.

    Raises:
        ConfigError: there is no such algorithm, hyperparameter or kind of model.
        ExportError: the model cannot become a graph.
    """
    algorithm = algorithms.build(work.algorithm, settings_for(work.algorithm, work.settings))
    model = model_for(given, data, batch=work.batch, seed=seed)
    return build(algorithm, fitted(algorithm, model, own=HEAD, seed=seed), runtimes=runtimes)


def model_for(given: object, data: FleetData, *, batch: int, seed: int) -> Model:
    """The model to export.

    Args:
        given: a ``torch.nn.Module``, an :class:`exporters.model.Model`, which knows its inputs and loss, or a function
            or class that gives one of them.  A module's loss is the cross entropy where targets are whole numbers, and
            the mean squared error where they are not.
        data: tells the shapes of a module's inputs.
        batch: rows of a module's minibatch.
        seed: of what a function draws with torch.

    Raises:
        ConfigError: it is something else.
        ExportError: the module does not take such inputs.
    """
    found = seeded(given, seed) if callable(given) and not isinstance(given, nn.Module) else given
    if isinstance(found, Model):
        return found
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"{type(found).__name__} is no model",
            where="model",
            remedy="Give a torch.nn.Module, an exporters.model.Model, a function that gives one, or a name as text",
        )
    examples = next(iter(data.devices.values()))
    loss = "cross_entropy" if examples.train_y.dtype.kind in "iub" else "mse"
    return model_of(found, [_spec(x) for _, x in named("train_x", examples.train_x)], loss=loss, batch=batch)


def _spec(x: np.ndarray[Any, Any]) -> ExampleSpec:
    return ExampleSpec(tuple(x.shape[1:]), "int64" if x.dtype.kind in "iu" else "float32")
