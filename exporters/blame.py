"""Which module of a model brings in an operator: for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from exporters.model import Model


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch left it untyped
    """Notes in which module each operator is first called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.inside: list[str] = []
        self.seen: dict[str, str] = {}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload[..., Any],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = func.overloadpacket.__name__
        self.seen.setdefault(name, self.inside[-1] if self.inside else "the whole model")
        return func(*args, **(kwargs or {}))

    def enter(self, label: str) -> Callable[..., None]:
        """A hook for the start of a module."""
        return lambda *_: self.inside.append(label)

    def leave(self, *_: object) -> None:
        """A hook for the end of a module."""
        self.inside.pop()


def module_of(model: Model, operator: str) -> str | None:
    """The module, by name and type, that calls an operator or the one it is the gradient of; None if none does.

    Args:
        model: the model.
        operator: its name without namespace, such as ``lgamma`` or ``lgamma_backward``.
    """
    watch = _Watch()
    hooks = []
    for name, module in model.module.named_modules():
        label = f"module {name or '(whole model)'} ({type(module).__name__})"
        hooks += [module.register_forward_pre_hook(watch.enter(label)), module.register_forward_hook(watch.leave)]
    try:
        with torch.no_grad(), watch:
            nn.Module.__call__(model.module, torch.zeros(model.batch, *model.input))
    finally:
        for hook in hooks:
            hook.remove()
    return watch.seen.get(operator) or watch.seen.get(operator.removesuffix("_backward"))
