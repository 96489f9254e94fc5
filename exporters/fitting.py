"""A model as an algorithm needs it."""

from __future__ import annotations

import dataclasses

from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from edgepfl.plan import Shape
from exporters.model import Model
from exporters.representation import gaussian, width_of


def fitted(algorithm: Algorithm, model: Model, *, own: tuple[str, ...] = (), seed: int = 0) -> Model:
    """The model with what the algorithm asks for and the user did not name: personal parameters, a representation.

    Args:
        algorithm: the algorithm.
        model: stays as it is.
        own: patterns of the personal parameters where neither the model nor the algorithm names any.
        seed: of the parameters of new layers.

    Raises:
        ConfigError: the algorithm keeps a part of the model on the device, and none is named.
        ExportError: the model cannot have a representation.
    """
    wanted = any(slot.shape is Shape.PERSONAL for slot in algorithm.declared().values())
    if wanted and not model.personal:
        model = dataclasses.replace(model, personal=algorithm.personal_default or own)
    if algorithm.represented and width_of(model) is None:
        return gaussian(model, seed=seed)
    if not wanted or model.personal:
        return model
    if not algorithm.represented:
        raise ConfigError(
            "it keeps a part of the model on the device, and none is named",
            where=type(algorithm).__name__,
            remedy=f"Name it with --personal and patterns; the model has {', '.join(model.specs)}",
        )
    return dataclasses.replace(model, personal=("head.*",))
