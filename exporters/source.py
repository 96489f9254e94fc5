"""A model from the name of what makes it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
from torch import nn

from edgepfl.errors import ConfigError, EdgepflError, ExportError
from edgepfl.plan import ExampleSpec
from exporters import named
from exporters.model import Model, model_of, seeded
from exporters.named import Named
from exporters.objectives import METRICS, OBJECTIVES, PerExample

_OWN_LOSS = f"Choose one of {', '.join(OBJECTIVES)}, or write for example my_models:my_loss"


@dataclass(frozen=True)
class Wanted:
    """What a user says of a model.

    Attributes:
        path: ``MODULE:FACTORY``; gives a module or a :class:`Model`.
        arguments: the factory's, by name; of a :class:`exporters.named.Named` what it stands for.
        inputs: what one example has of each input; may be empty where the factory gives a Model.
        target: what it has of the target, where it does not follow from the loss.
        loss: a name in :data:`exporters.objectives.OBJECTIVES` or ``MODULE:FUNCTION``; None for the model's own.
        metrics: names in :data:`exporters.objectives.METRICS` or ``MODULE:FUNCTION``; empty for those of the loss.
        batch: rows of a minibatch.
        personal: patterns of the parameters that stay on the device.
        seed: of the initial parameters.
        weights: a file of initial parameters.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[ExampleSpec] = ()
    target: ExampleSpec | None = None
    loss: str | None = None
    metrics: tuple[str, ...] = ()
    batch: int = 16
    personal: tuple[str, ...] = ()
    seed: int = 0
    weights: Path | None = None


def load_model(wanted: Wanted) -> Model:
    """The model that a user wants.

    Raises:
        ConfigError: there is no such factory, loss or metric, or an input's shape is not known.
        ExportError: the factory fails, or makes something else, or the module does not take such inputs.
    """
    made = _made(wanted)
    if wanted.weights is not None:
        _fill(made.module if isinstance(made, Model) else made, wanted.weights)
    if isinstance(made, Model):
        return _changed(made, wanted)
    if not wanted.inputs:
        raise ConfigError(f"{wanted.path} gives a module, so it must be given", where="--input", remedy="See --help")
    return model_of(
        made,
        wanted.inputs,
        loss=_loss(wanted.loss or "cross_entropy"),
        metrics=_metrics(wanted) or None,
        target=wanted.target,
        batch=wanted.batch,
        personal=wanted.personal,
        title=_name(wanted.path),
    )


def _changed(known: Model, wanted: Wanted) -> Model:
    """A model that knows its inputs and loss, with others where the user says so."""
    loss = _loss(wanted.loss) if wanted.loss else known.loss
    return model_of(
        known.module,
        wanted.inputs or known.inputs,
        loss=loss,
        metrics=_metrics(wanted) or (None if wanted.loss else known.metrics),
        target=wanted.target or (None if isinstance(loss, str) else known.target),
        batch=wanted.batch,
        personal=wanted.personal or known.personal,
        title=known.title,
    )


def _loss(name: str) -> str | PerExample:
    return named.function(name, "--loss", _OWN_LOSS) if ":" in name else name


def _metric(name: str) -> PerExample:
    if ":" not in name and name not in METRICS:
        known = ", ".join(METRICS)
        raise ConfigError(f"there is no metric {name!r}", where="--metric", remedy=f"{known}, or MODULE:FUNCTION")
    return named.function(name, "--metric") if ":" in name else METRICS[name]


def _metrics(wanted: Wanted) -> dict[str, PerExample]:
    metrics = {_name(metric): _metric(metric) for metric in wanted.metrics}
    if len(metrics) < len(wanted.metrics):
        raise ConfigError("two have the same name", where="--metric", remedy="Give one function another name")
    return metrics


def _name(path: str) -> str:
    return path.rpartition(":")[2]


def _made(wanted: Wanted) -> Model | nn.Module:
    factory = named.function(wanted.path, "--model")
    more = {"seed": wanted.seed} if "seed" not in wanted.arguments and _takes_seed(factory) else {}

    def call() -> object:
        values = {key: _value(key, argument) for key, argument in wanted.arguments.items()}
        return factory(**values, **more)

    try:
        made = seeded(call, wanted.seed)
    except EdgepflError:
        raise
    except Exception as error:  # a factory raises whatever it likes
        raise ExportError(
            f"the factory failed ({error})", where=wanted.path, remedy="Give its arguments with --model-arg KEY=VALUE"
        ) from error
    if not isinstance(made, Model | nn.Module):
        raise ExportError(f"it gives a {type(made).__name__}, not a torch.nn.Module", where=wanted.path)
    return made


def _value(key: str, argument: object) -> object:
    return argument.value(f"--model-arg {key}") if isinstance(argument, Named) else argument


def _takes_seed(factory: Callable[..., object]) -> bool:
    try:
        return "seed" in inspect.signature(factory).parameters
    except ValueError:  # written in C, so it has no signature
        return False


def _fill(module: nn.Module, path: Path) -> None:
    """Initial parameters from a file, under the names they have in the module."""
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)  # which runs nothing that is in the file
        wrong = module.load_state_dict(tensors, strict=False)
    except UnpicklingError as error:
        raise ConfigError(
            "it holds more than tensors, which might run on loading, or is none of torch's",
            where=str(path),
            remedy="Save module.state_dict(), or a .safetensors file",
        ) from error
    except Exception as error:  # torch and safetensors raise whatever they like
        told = " ".join(str(error).split())  # on one line
        raise ConfigError(f"its tensors cannot be loaded ({told})", where=str(path)) from error
    lacking = set(wrong.missing_keys) - _given_otherwise(module, tensors.keys())
    if lacking or wrong.unexpected_keys:
        missing = ", ".join(sorted(lacking)[:4]) or "nothing"
        surplus = ", ".join(wrong.unexpected_keys[:4]) or "nothing"
        raise ConfigError(f"it lacks {missing} and has besides {surplus}", where=str(path))


def _given_otherwise(module: nn.Module, names: Collection[str]) -> set[str]:
    """Tensors of which a file has the other name of one it shares, and counters, which nothing reads."""
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    given = {id(tensor) for name, tensor in tensors if name in names}
    return {name for name, tensor in tensors if id(tensor) in given or name.endswith("num_batches_tracked")}
