"""Which modules may be exported, and what to say of the others."""

from __future__ import annotations

import torch
from torch import nn

from edgepfl.errors import ExportError
from exporters.model import Model

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def admit(model: Model) -> None:
    """Refuse a model that would be wrong on a device, or would not export.

    Raises:
        ExportError: names the module and what is wrong with it.
    """
    for name, module in model.module.named_modules():
        _admit_module(f"module {name or '(whole model)'} ({type(module).__name__})", module)
    for name, parameter in model.module.named_parameters():
        if parameter.dtype is not torch.float32:
            raise ExportError(f"it is {parameter.dtype}, not float32", where=f"parameter {name}")
    _admit_outputs(model)


def _admit_module(where: str, module: nn.Module) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  torch gives the base no public name
        if module.training or not module.track_running_stats:
            raise ExportError(
                "batch normalisation with the batch's own statistics cannot be exported",
                where=where,
                remedy="Use nn.GroupNorm, or freeze its statistics: module.eval()",
            )
    elif isinstance(module, _DROPOUT) and module.training and module.p > 0:
        raise ExportError("dropout cannot be exported", where=where, remedy="Remove it, or set it to module.eval()")
    elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
        raise ExportError("recurrent layers cannot be exported", where=where, remedy="Use nn.Conv1d over time")


def _admit_outputs(model: Model) -> None:
    where = model.title or type(model.module).__name__
    x = torch.zeros(model.batch, *model.input)
    try:
        outputs: object = model.outputs(model.parameters, x)
    except ExportError:
        raise
    except Exception as error:  # a module raises whatever it likes
        raise ExportError(
            f"the module does not take inputs of shape {list(x.shape)} ({error})",
            where=where,
            remedy="Check the shape of one example",
        ) from error
    wanted = (model.batch, model.classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != wanted:
        found = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ExportError(
            f"the module gives {found}, not {list(wanted)}", where=where, remedy="Check the number of classes"
        )
