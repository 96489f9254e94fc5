"""Models to begin with, of the kinds that run on boards, phones and wearables.

Each function gives a seeded :class:`exporters.model.Model`.  The last layer of each is called ``head``, so
``--personal 'head.*'`` keeps it on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from exporters.model import Model
from exporters.zoo.flat import mlp
from exporters.zoo.keywords import ds_cnn
from exporters.zoo.pictures import lenet, mobilenet, resnet
from exporters.zoo.sensors import cnn1d, gru, tcn
from exporters.zoo.transformer import vit

ZOO: Mapping[str, Callable[..., Model]] = MappingProxyType(
    {
        "mlp": mlp,
        "lenet": lenet,
        "cnn1d": cnn1d,
        "tcn": tcn,
        "gru": gru,
        "ds_cnn": ds_cnn,
        "mobilenet": mobilenet,
        "resnet": resnet,
        "vit": vit,
    }
)
"""Each model by name; called without arguments it has the sizes of the papers or data sets it is known from."""

__all__ = ["ZOO", "cnn1d", "ds_cnn", "gru", "lenet", "mlp", "mobilenet", "resnet", "tcn", "vit"]
