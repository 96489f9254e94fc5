"""Which module of a model brings in an operator: for messages."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:  # it looks for whom to blame itself
    from exporters.model import Model


class Calls:
    """Which modules are being called; after an error, were when it was raised."""

    def __init__(self) -> None:
        self._inside: list[nn.Module] = []

    @property
    def where(self) -> str:
        """The innermost module, by name and type; empty outside of all."""
        inside = [module for module in self._inside if not isinstance(module, fx.GraphModule)]
        if not inside:
            return ""
        names = {module: name for name, module in inside[0].named_modules()}
        return label(names.get(inside[-1], ""), inside[-1])

    @property
    def part(self) -> str:
        """Likewise with a colon, to begin a sentence with; empty for the whole model, too."""
        return f"{self.where}: " if self.where and len(self._inside) > 1 else ""

    @contextlib.contextmanager
    def watching(self) -> Iterator[Calls]:
        """While modules are called."""
        hooks = [
            register_module_forward_pre_hook(lambda module, _: self._inside.append(module)),
            register_module_forward_hook(lambda *_: self._leave()),
        ]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _leave(self) -> None:
        self._inside.pop()


def label(name: str, module: nn.Module) -> str:
    """How messages call a module."""
    return f"module {name or '(whole model)'} ({type(module).__name__})"


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

    def enter(self, name: str) -> Callable[..., None]:
        """A hook for the start of a module."""
        return lambda *_: self.inside.append(name)

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
    whole = copy.deepcopy(model.module)  # a forward pass moves running statistics
    for name, module in whole.named_modules():
        hooks += [
            module.register_forward_pre_hook(watch.enter(label(name, module))),
            module.register_forward_hook(watch.leave),
        ]
    try:
        with torch.no_grad(), watch:
            nn.Module.__call__(whole, *model.zeros)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.seen.get(operator) or watch.seen.get(operator.removesuffix("_backward"))
