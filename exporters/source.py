"""A model from the name of what makes it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import partial

from torch import nn

from edgepfl.errors import ConfigError, EdgepflError, ExportError
from exporters.model import Model, seeded


def load_model(
    path: str,
    *,
    input_shape: tuple[int, ...] | None,
    classes: int | None,
    batch: int,
    loss: str,
    personal: tuple[str, ...],
    seed: int,
) -> Model:
    """The model that ``MODULE:FACTORY`` makes.

    Args:
        path: the factory takes no arguments (but ``seed``, if it likes) and gives a module or a :class:`Model`.
        input_shape: the shape of one example; may be None where the factory gives a Model.
        classes: how many there are; likewise.
        batch: rows of a minibatch.
        loss: a name in :data:`exporters.model.LOSSES`.
        personal: patterns of the parameters that stay on the device.
        seed: of the initial parameters.

    Raises:
        ConfigError: there is no such factory, or a shape is not known.
        ExportError: the factory fails, or makes something else.
    """
    made = _made(path, seed)
    if isinstance(made, Model):
        shape = input_shape or made.input
        return dataclasses.replace(
            made, input=shape, classes=classes or made.classes, batch=batch, loss=loss, personal=personal
        )
    if not isinstance(made, nn.Module):
        raise ExportError(f"it gives a {type(made).__name__}, not a torch.nn.Module", where=path)
    if input_shape is None or classes is None:
        missing = "--input" if input_shape is None else "--classes"
        raise ConfigError(f"{path} gives a module, so it must be given", where=missing, remedy="See --help")
    return Model(made, input_shape, classes, batch, loss, personal, title=path.rpartition(":")[2])


def _made(path: str, seed: int) -> object:
    factory = _factory(path)
    try:
        if "seed" in inspect.signature(factory).parameters:
            factory = partial(factory, seed=seed)
        return seeded(factory, seed)
    except EdgepflError:
        raise
    except Exception as error:  # a factory raises whatever it likes
        raise ExportError(f"the factory failed ({error})", where=path) from error


def _factory(path: str) -> Callable[..., object]:
    where = "--model"
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} is not MODULE:FACTORY", where=where, remedy="Write for example my_models:make_net")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string, as sys.path wants; python -m does the same
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module raises whatever it likes
        raise ConfigError(f"module {module_name} cannot be imported ({error})", where=where) from error
    finally:
        sys.path.pop(0)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ConfigError(f"module {module_name} has no function or class {name!r}", where=where)
    found: Callable[..., object] = factory
    return found
