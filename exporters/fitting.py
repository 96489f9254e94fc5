"""A model as an algorithm needs it."""

from __future__ import annotations

import dataclasses

from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from edgepfl.plan import Shape
from exporters.model import Model
from exporters.representation import gaussian, width_of


def fitted(algorithm: Algorithm, model: Model, *, seed: int = 0) -> Model:
    """The model with what the algorithm asks for and the user did not name: personal parameters, a representation.

    Args:
        algorithm: the algorithm.
        model: stays as it is.
        seed: of the parameters of new layers.

    Raises:
        ConfigError: the algorithm keeps a part of the model on the device, and none is named.
        ExportError: the model cannot have a representation.
    """
    if algorithm.represented and width_of(model) is None:
        return gaussian(model, seed=seed)
    parts = {slot.shape for slot in algorithm.declared().values()}
    if Shape.PERSONAL not in parts or model.personal:
        return model
    if algorithm.represented:
        return dataclasses.replace(model, personal=("head.*",))
    if not algorithm.personal_default:
        raise ConfigError(
            "it keeps a part of the model on the device, and none is named",
            where=type(algorithm).__name__,
            remedy=f"Name it with --personal and patterns; the model has {', '.join(model.specs)}",
        )
    return dataclasses.replace(model, personal=algorithm.personal_default)
