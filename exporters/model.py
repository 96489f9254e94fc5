"""The model to export: a module, what goes in, and how its outputs are judged."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edgepfl.errors import ConfigError, ExportError
from edgepfl.plan import BATCH_LIMIT, INPUT_LIMIT, ExampleSpec, TensorSpec, TensorSpecs
from edgepfl.tree import Tree
from exporters.blame import Calls
from exporters.forward import Forward
from exporters.indices import bounded
from exporters.objectives import METRICS, OBJECTIVES, PerExample, classes_of
from exporters.parts import BatchNorm, admit_parts

Inputs: TypeAlias = tuple[Tensor, ...]
"""A minibatch of each input, ``(size, *shape)``."""


@dataclass(frozen=True)
class Model:
    """A model to train on devices.

    It trains in the mode its modules are in: those set to evaluation, ``module.bn.eval()``, stay so.  Parameters that
    want no gradient stay as they are.

    Attributes:
        module: gives ``(batch, ...)`` for each input's ``(batch, *shape)``, or several such, of which the first counts.
        inputs: what one example has of each.
        target: what one example has of the target.
        loss: of each example.
        metrics: reported besides the loss, by name.
        batch: rows of a minibatch; static, short ones are padded with rows of weight 0.
        personal: shell-style patterns of the parameters that stay on the device, such as ``head.*``.
        title: the model's name, for people.
    """

    module: nn.Module
    inputs: tuple[ExampleSpec, ...]
    target: ExampleSpec
    loss: PerExample
    metrics: Mapping[str, PerExample] = field(default_factory=dict)
    batch: int = 16
    personal: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= BATCH_LIMIT:
            raise ConfigError(f"{self.batch} will not do, it must be from 1 to {BATCH_LIMIT}", where="batch")
        if not 1 <= len(self.inputs) <= INPUT_LIMIT:
            raise ConfigError(f"a model has 1 to {INPUT_LIMIT} inputs, not {len(self.inputs)}", where="inputs")
        if taken := self.metrics.keys() & {"loss", "weight"}:
            raise ConfigError(f"no metric may be called {min(taken)}", where="metrics")

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.title or type(self.module).__name__

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """The running statistics that training moves: buffers of batch normalisation."""
        return tuple(
            f"{name}.{buffer}" if name else buffer
            for name, part in self.module.named_modules()
            if isinstance(part, BatchNorm) and part.training and part.running_mean is not None
            for buffer in ("running_mean", "running_var")
        )

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that want no gradient."""
        return tuple(name for name, parameter in self.module.named_parameters() if not parameter.requires_grad)

    @property
    def parameters(self) -> Tree:
        """The initial parameters and running statistics, by name; copies."""
        return Tree({name: tensor.detach().clone() for name, tensor in self._tensors.items()})

    @cached_property
    def specs(self) -> TensorSpecs:
        """The shapes of the parameters and running statistics, by name."""
        return {name: TensorSpec(tuple(tensor.shape)) for name, tensor in sorted(self._tensors.items())}

    @property
    def personal_names(self) -> tuple[str, ...]:
        """The parameters and statistics that a personal pattern matches.

        Raises:
            ExportError: a pattern matches none.
        """
        names = list(self.specs)
        for pattern in self.personal:
            if not fnmatch.filter(names, pattern):
                raise ExportError(
                    f"no parameter matches {pattern!r}",
                    where="personal",
                    remedy=f"The model has {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}",  # noqa: PLR2004
                )
        return tuple(name for name in names if any(fnmatch.fnmatchcase(name, p) for p in self.personal))

    @cached_property
    def noise(self) -> tuple[TensorSpec, ...]:
        """The standard normals that dropout asks for in one forward pass of a minibatch, in the order of its calls."""
        forward = Forward(torch.ones(self.batch))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self.outputs(self.parameters, self.zeros, forward)
        return tuple(TensorSpec(shape) for shape in forward.shapes)

    @property
    def zeros(self) -> Inputs:
        """A minibatch of nothing."""
        return tuple(torch.zeros(self.batch, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in self.inputs)

    @property
    def highest(self) -> Inputs:
        """Likewise, of the greatest index where inputs are whole numbers."""
        return tuple(x + max(spec.high - 1, 0) for x, spec in zip(self.zeros, self.inputs, strict=True))

    def outputs(self, params: Tree, x: Inputs, forward: Forward | None = None) -> Tensor:
        """What the module gives with these parameters in place of its own.

        Args:
            params: its parameters and running statistics.
            x: its inputs.
            forward: carries out the pass in training mode; without it the module predicts.

        Raises:
            ExportError: other parameters than the module's, which would silently stand in for missing ones; or the
                module gives no tensor.
        """
        if apart := params.keys() ^ self.specs.keys():
            raise ExportError(
                f"the model is asked for with other parameters than its own: {', '.join(sorted(apart)[:4])}",
                where=self.name,
            )
        tensors = {**self._constants(params), **params}
        if forward is None:
            with _predicting(self.module):
                return self._first(functional_call(self.module, tensors, x))
        with _without_counters(self.module), forward.watching(params.like(dict.fromkeys(self.statistics))):
            return self._first(functional_call(self.module, tensors, x))

    def _constants(self, params: Tree) -> dict[str, Tensor]:
        """The other buffers, in the dtype of the parameters."""
        dtype = next(iter(params.values())).dtype
        return {
            name: buffer.to(dtype) if buffer.is_floating_point() else buffer
            for name, buffer in self.module.named_buffers()
            if name not in params and not name.endswith("num_batches_tracked")
        }

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        buffers = dict(self.module.named_buffers())
        return {**dict(self.module.named_parameters()), **{name: buffers[name] for name in self.statistics}}

    def _first(self, outputs: object) -> Tensor:
        """The tensor of an output, or the first of several: modules may give a tuple, a mapping or a record of them."""
        if isinstance(outputs, Mapping):
            outputs = tuple(outputs.values())
        if isinstance(outputs, tuple | list) and outputs:
            outputs = outputs[0]
        if not isinstance(outputs, Tensor):
            raise ExportError(
                f"the module gives a {type(outputs).__name__}, not a tensor",
                where=self.name,
                remedy="Give a tensor, or a tuple or mapping whose first element is one",
            )
        return outputs


@contextlib.contextmanager
def _predicting(module: nn.Module) -> Iterator[None]:
    """While a module is in evaluation mode, and no fused path is taken that has no operators to trace."""
    modes = [(part, part.training) for part in module.modules()]
    fused = torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for part, mode in modes:
            part.training = mode


@contextlib.contextmanager
def _without_counters(module: nn.Module) -> Iterator[None]:
    """While batch normalisation does not count minibatches: in a trace it would count them for ever."""
    counters = [(part, part.num_batches_tracked) for part in module.modules() if isinstance(part, BatchNorm)]
    for part, _ in counters:
        part.num_batches_tracked = None
    try:
        yield
    finally:
        for part, counter in counters:
            part.num_batches_tracked = counter


def model_of(
    module: nn.Module,
    inputs: Sequence[tuple[int, ...] | ExampleSpec],
    *,
    loss: str | PerExample = "cross_entropy",
    metrics: Mapping[str, PerExample] | None = None,
    target: ExampleSpec | None = None,
    batch: int = 16,
    personal: tuple[str, ...] = (),
    title: str = "",
) -> Model:
    """A model whose target follows from its outputs.

    Args:
        module: as :attr:`Model.module`.
        inputs: what one example has of each input; of float32 where only a shape is given.
        loss: a name in :data:`exporters.objectives.OBJECTIVES`, or a function.
        metrics: those of the loss unless given; none for a function.
        target: what the loss calls for unless given; the class for a function.
        batch: rows of a minibatch.
        personal: patterns of the parameters that stay on the device.
        title: the model's name.

    Raises:
        ConfigError: there is no such loss.
        ExportError: the module does not take such inputs.
    """
    if isinstance(loss, str) and loss not in OBJECTIVES:
        raise ConfigError(f"there is no loss {loss!r}", remedy=f"Choose one of {', '.join(OBJECTIVES)}")
    specs = tuple(each if isinstance(each, ExampleSpec) else ExampleSpec(tuple(each)) for each in inputs)
    specs = bounded(specs, module, batch)
    chosen = OBJECTIVES[loss] if isinstance(loss, str) else None
    function = loss if not isinstance(loss, str) else OBJECTIVES[loss].loss
    known = chosen.metrics if chosen else ()
    model = Model(
        module,
        specs,
        target or ExampleSpec(()),
        function,
        metrics if metrics is not None else {name: METRICS[name] for name in known},
        batch,
        personal,
        title,
    )
    if target is not None:
        return model
    return dataclasses.replace(model, target=(chosen.target if chosen else classes_of)(dry_run(model)))


def dry_run(model: Model) -> Tensor:
    """The outputs for a minibatch of zeros in training mode, whose first axis is the minibatch's.

    Raises:
        ExportError: the module does not take such inputs, or gives something else, or one of its parts may not train.
    """
    admit_parts(model.module)
    calls = Calls()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), calls.watching():
            for x in (model.highest, model.zeros):
                outputs = model.outputs(model.parameters, x, Forward(torch.ones(model.batch)))
    except ExportError as error:
        raise ExportError(error.what, where=error.where or calls.where, remedy=error.remedy) from error
    except Exception as error:  # a module raises whatever it likes
        shapes = " and ".join(f"{spec.dtype}{[model.batch, *spec.shape]}" for spec in model.inputs)
        raise ExportError(
            f"the module does not take inputs of shape {shapes} ({calls.part}{' '.join(str(error).split())})",
            where=model.name,
            remedy="Check the shape and type of one example",
        ) from error
    if outputs.dim() == 0 or outputs.shape[0] != model.batch:
        raise ExportError(
            f"the module gives {list(outputs.shape)} for {model.batch} examples",
            where=model.name,
            remedy="Its first axis must be the minibatch's",
        )
    return outputs


Made = TypeVar("Made")


def seeded(factory: Callable[[], Made], seed: int) -> Made:
    """What ``factory`` makes when torch's generator starts from ``seed``, which it does not disturb."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
