"""Which models may be exported, and what to say of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from edgepfl.errors import ExportError
from exporters.model import Model, dry_run
from exporters.objectives import cross_entropy


def admit(model: Model) -> None:
    """Refuse a model that would be wrong on a device, or would not export.

    Raises:
        ExportError: names the module and what is wrong with it.
    """
    with _unchanged(model.module):
        outputs = dry_run(model)
    _admit_loss(model, outputs)


@contextlib.contextmanager
def _unchanged(whole: nn.Module) -> Iterator[None]:
    """While a module that runs may change or replace none of its tensors.

    As it runs they are others than its own, so they are looked at where it begins and ends.
    """
    before: dict[str, tuple[Tensor, int]] = {}

    def enter(*_: object) -> None:
        before.update({name: (tensor, _writes(tensor)) for name, tensor in _tensors(whole)})

    def leave(*_: object) -> None:
        now = dict(_tensors(whole))
        for name, (tensor, writes) in before.items():
            if now.get(name) is not tensor or _writes(tensor) != writes:
                raise ExportError(
                    "a forward pass changes it, and only the running statistics of batch normalisation may change",
                    where=f"tensor {name}",
                    remedy="Keep no state between forward passes",
                )

    hooks = (whole.register_forward_pre_hook(enter), whole.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(whole: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from whole.named_parameters()
    yield from whole.named_buffers()


def _writes(tensor: Tensor) -> int:
    """How often it was written to in place."""
    return tensor._version  # noqa: SLF001  torch gives it no public name


def _admit_loss(model: Model, outputs: torch.Tensor) -> None:
    """The loss and each metric give one number for each example."""
    if model.loss is cross_entropy and outputs.dim() > 1 and outputs.shape[1] == 1:
        raise ExportError(
            "cross_entropy of a single class is 0 whatever the model gives",
            where=f"loss of {model.name}",
            remedy="Choose mse or huber for a number, bce for yes or no",
        )
    dtype = torch.int64 if model.target.dtype == "int64" else outputs.dtype
    y = torch.zeros(model.batch, *model.target.shape, dtype=dtype)
    for name, judge in {"loss": model.loss, **model.metrics}.items():
        where = f"{name} of {model.name}"
        try:
            found: object = judge(outputs, y)
        except Exception as error:  # a function of the user's raises whatever it likes
            raise ExportError(
                f"it fails on outputs {list(outputs.shape)} and targets {list(y.shape)} ({error})",
                where=where,
                remedy="Leave out the target's shape, which the outputs tell, or choose another loss",
            ) from error
        if not isinstance(found, torch.Tensor) or found.shape != (model.batch,) or not found.is_floating_point():
            shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ExportError(
                f"it gives {shape}, not a number for each of the {model.batch} examples",
                where=where,
                remedy="Average over everything but the first axis: reduction='none', then .flatten(1).mean(1)",
            )
