"""Which modules and parameters may train on a device, and what to say of the others."""

from __future__ import annotations

import torch
from torch import nn

from edgepfl.errors import ExportError

BatchNorm = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  torch gives the base no public name

_HALF = (torch.float16, torch.bfloat16)


def admit_parts(whole: nn.Module) -> None:
    """Refuse a module for one of its parts, before it is run: it would fail there for a reason that says less.

    Raises:
        ExportError: names the part and what is wrong with it.
    """
    for name, module in whole.named_modules():
        _admit_module(f"module {name or '(whole model)'} ({type(module).__name__})", module)
    for name, parameter in whole.named_parameters():
        _admit_parameter(f"parameter {name}", parameter)
    if not any(parameter.requires_grad for parameter in whole.parameters()):
        raise ExportError("it has no parameter to train", where=type(whole).__name__)


def _admit_module(where: str, module: nn.Module) -> None:
    if isinstance(module, BatchNorm):
        if module.running_mean is None:
            raise ExportError(
                "it predicts with the statistics of whatever is in the batch",
                where=where,
                remedy="Leave track_running_stats at True, or use nn.GroupNorm",
            )
        if module.training and module.momentum is None:
            raise ExportError(
                "momentum=None, a cumulative average, needs a count that does not travel",
                where=where,
                remedy="Give it a momentum, or freeze its statistics: module.eval()",
            )
    elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:  # noqa: SLF001  torch gives the base no public name
        raise ExportError(
            "running statistics of instance normalisation are not carried along",
            where=where,
            remedy="Leave track_running_stats at False",
        )


def _admit_parameter(where: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ExportError("it has no shape yet", where=where, remedy="Run a lazy module once before exporting it")
    if parameter.dtype in _HALF:
        raise ExportError(
            f"it is {parameter.dtype}, and devices train in float32: half precision loses a step that is small beside "
            "its parameter",
            where=where,
            remedy="Export module.float()",
        )
    if parameter.dtype is not torch.float32:
        raise ExportError(f"it is {parameter.dtype}, not float32", where=where, remedy="Export module.float()")
