"""Models that represent an example by a normal distribution before they judge it, as FedCR wants them.

Such a module has two submodules: ``features`` gives ``(size, 2 * width)`` for the inputs, the means and then the raw
scales, before they are made positive; ``head`` gives the outputs for ``(size, width)``.  The module itself gives what
its head says of the means.  :func:`gaussian` turns a classifier into one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from edgepfl.errors import ConfigError, ExportError
from edgepfl.tree import Tree
from exporters.blame import label
from exporters.forward import Forward
from exporters.model import Inputs, Model, seeded

WIDTH = 256
"""The most numbers in a representation unless a user asks for more: the default of FedCR's authors."""


class Gaussian(nn.Module):
    """What the head says of the means.

    Args:
        features: gives ``(size, 2 * width)``: means and raw scales.
        head: takes ``(size, width)``.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, *x: Tensor) -> Tensor:
        """The outputs, ``(size, ...)``."""
        mean, _ = _halves(self.features(*x))
        outputs: Tensor = self.head(mean)
        return outputs


def gaussian(model: Model, width: int | None = None, *, seed: int = 0) -> Model:
    """A model whose last linear layer is replaced by a representation of ``width`` numbers and a new personal head.

    Args:
        model: a classifier whose output is that of a linear layer: the one that its personal pattern names, or else the
            last that it calls.  It stays as it is.
        width: of the representation; as many numbers as the layer takes, at most :data:`WIDTH`, unless given.
        seed: of the new layers' parameters.

    Raises:
        ConfigError: the width is no size.
        ExportError: it has no such layer, or its output is not what the layer gives.
    """
    module = copy.deepcopy(model.module)
    name, layer = _last(dataclasses.replace(model, module=module))
    width = min(layer.in_features, WIDTH) if width is None else width
    if width < 1:
        raise ConfigError(f"{width} will not do, it must be at least 1", where="width")
    scales, head = seeded(lambda: (nn.Linear(layer.in_features, 2 * width), nn.Linear(width, layer.out_features)), seed)
    return dataclasses.replace(
        model,
        module=Gaussian(_replaced(module, name, scales), head),
        personal=("head.*",),
        title=model.name,
    )


def represent(model: Model, params: Tree, x: Inputs, forward: Forward | None = None) -> tuple[Tensor, Tensor]:
    """Means and raw scales of the representations, ``(size, width)`` each.

    Args:
        model: its module has ``features`` and ``head``.
        params: the whole model's parameters and running statistics.
        x: inputs.
        forward: carries out the pass in training mode; without it the module predicts.

    Raises:
        ExportError: the module is none of this kind.
    """
    part = _part(model, _Features)
    both = part.outputs(params.like(part.specs), x, forward)
    if both.dim() != 2 or both.shape[1] % 2:  # noqa: PLR2004  rows, and pairs of numbers
        raise ExportError(
            f"features gives {list(both.shape)}, not a mean and a scale for each number of a representation",
            where=model.name,
            remedy="Let it give (size, 2 * width)",
        )
    return _halves(both)


def judge_head(model: Model, params: Tree, z: Tensor, forward: Forward | None = None) -> Tensor:
    """What the head gives for representations.

    Args:
        model: its module has ``features`` and ``head``.
        params: the whole model's parameters and running statistics.
        z: ``(size, width)``.
        forward: carries on the pass in which they were made; without it the module predicts.

    Raises:
        ExportError: the module is none of this kind, or its head draws random numbers or measures statistics, which
            would differ from one draw of a representation to the next.
    """
    part = _part(model, _Head)
    before = len(forward.shapes) if forward else 0
    outputs = part.outputs(params.like(part.specs), (z,), forward)
    if part.statistics or (forward and len(forward.shapes) > before):
        raise ExportError(
            "the head draws random numbers or measures statistics, and it is run several times on one minibatch",
            where=model.name,
            remedy="Move dropout and batch normalisation to features",
        )
    return outputs


def width_of(model: Model) -> int | None:
    """How many numbers represent an example; None where a model has no such representation."""
    if not _has_parts(model.module):
        return None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            x = tuple(torch.randn_like(each) if each.is_floating_point() else each for each in model.highest)
            mean, _ = represent(model, model.parameters, x)
            judged = judge_head(model, model.parameters, mean)
            whole = model.outputs(model.parameters, x)
    except Exception:  # noqa: BLE001  parts of these names may be anything and take anything
        return None
    return mean.shape[1] if judged.shape == whole.shape and torch.allclose(judged, whole, rtol=1e-4) else None


class _Features(nn.Module):
    """A module's ``features``, its tensors by the whole module's names."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.features = whole.get_submodule("features")

    def forward(self, *x: Tensor) -> Tensor:
        both: Tensor = self.features(*x)
        return both


class _Head(nn.Module):
    """Likewise its ``head``."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.head = whole.get_submodule("head")

    def forward(self, z: Tensor) -> Tensor:
        outputs: Tensor = self.head(z)
        return outputs


def _part(model: Model, kind: Callable[[nn.Module], nn.Module]) -> Model:
    if not _has_parts(model.module):
        raise ExportError(
            "it has no representation to draw from",
            where=model.name,
            remedy="Give it submodules features and head, or make one with exporters.representation:gaussian",
        )
    return dataclasses.replace(model, module=kind(model.module))


def _has_parts(module: nn.Module) -> bool:
    parts = dict(module.named_children())
    return "features" in parts and "head" in parts


def _halves(both: Tensor) -> tuple[Tensor, Tensor]:
    width = both.shape[1] // 2
    return both[:, :width], both[:, width:]


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The module with another layer in the place of this name."""
    if not name:
        return layer
    module.set_submodule(name, layer)
    return module


def _last(model: Model) -> tuple[str, nn.Linear]:
    """The linear layer whose output is the module's."""
    layers = {name: part for name, part in model.module.named_modules() if type(part) is nn.Linear}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        with _noted(layers) as called:
            model.outputs(model.parameters, model.zeros)
        name = _named(model, layers) if model.personal else called[-1] if called else None
        if name is None or called.count(name) != 1:
            raise _unsuitable(model, "it calls no linear layer" if name is None else f"it calls {name} more than once")
        layer = layers[name]
        if not _gives(model, layer):
            raise _unsuitable(model, f"its output is not that of {label(name, layer)}")
    return name, layer


def _named(model: Model, layers: dict[str, nn.Linear]) -> str:
    """The layer whose parameters are the personal ones."""
    own = set(model.personal_names)
    for name, layer in layers.items():
        if own == {f"{name}.{each}" if name else each for each, _ in layer.named_parameters()}:
            return name
    raise _unsuitable(model, f"its personal part, {', '.join(sorted(own)[:4])}, is not one linear layer")


@contextmanager
def _noted(layers: dict[str, nn.Linear]) -> Iterator[list[str]]:
    """While it is noted which of the layers are called, in order."""
    called: list[str] = []
    with ExitStack() as hooks:
        for name, layer in layers.items():
            hook = layer.register_forward_hook(lambda *_, name=name: called.append(name))
            hooks.callback(hook.remove)
        yield called


def _gives(model: Model, layer: nn.Linear) -> bool:
    """Whether the module gives what this layer gives, whatever that is: it is run with other numbers in its place."""
    stood_in: list[Tensor] = []
    given: list[object] = []

    def stand_in(_: nn.Module, __: object, output: Tensor) -> Tensor:
        stood_in.append(torch.linspace(-3.0, 2.0, output.numel()).reshape(output.shape))
        return stood_in[-1]

    rows = (model.batch, layer.out_features)
    with ExitStack() as hooks:
        hooks.callback(layer.register_forward_hook(stand_in).remove)
        hooks.callback(model.module.register_forward_hook(lambda _, __, output: given.append(output)).remove)
        for forward in (None, Forward(torch.ones(model.batch))):
            model.outputs(model.parameters, model.zeros, forward)
    return all(
        isinstance(found, Tensor) and found.shape == rows and torch.equal(found, wanted)
        for found, wanted in zip(given, stood_in, strict=True)
    )


def _unsuitable(model: Model, what: str) -> ExportError:
    return ExportError(
        f"{what}, so no representation can be put before it",
        where=model.name,
        remedy="Let a module end in one nn.Linear, or give it submodules features and head of your own",
    )
