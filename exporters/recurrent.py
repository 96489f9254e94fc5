"""Recurrent layers, unrolled: few operators for each time step, and everything else once for all steps.

Torch's own kernels for them have no operators to trace, and tracing its formulas step by step gives graphs three times
as large.  Here the inputs' projections are one product before the recurrence.  In the gradient the gates of all steps
are computed again in one product, the loop back through time keeps one product and a few sums a step, and the weights'
gradients are one product after it.

Notation: ``h`` the state, ``c`` LSTM's cell, ``a`` the sum that a gate's nonlinearity takes, ``T`` steps, ``B`` rows,
``H`` units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from edgepfl.errors import ExportError

STEP_LIMIT = 128
"""Time steps that are unrolled: some 30 operators each, so that more take minutes to export."""

Context: TypeAlias = Any  # torch types it as loosely


class _Plain(torch.autograd.Function):
    """``h' = f(a + h W^T)`` with ``f`` tanh or ReLU: ``(T, B, H)``, ``(B, H)``, ``(H, H)``, tanh? -> ``(T, B, H)``."""

    @staticmethod
    def forward(projected: Tensor, h: Tensor, weight: Tensor, smooth: bool) -> Tensor:  # noqa: FBT001  torch's calls
        across, states = weight.t(), []
        for a in _steps(projected):
            total = torch.addmm(a, h, across)
            h = total.tanh() if smooth else total.relu()
            states.append(h)
        return torch.stack(states)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, h, weight, ctx.smooth = inputs
        ctx.save_for_backward(h, weight, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, states = ctx.saved_tensors
        slope = 1 - states * states if ctx.smooth else (states > 0).to(states.dtype)
        coming, sums = torch.zeros_like(h), []
        for given, factor in zip(reversed(_steps(grad)), reversed(_steps(slope)), strict=True):
            sums.append((coming + given) * factor)
            coming = sums[-1] @ weight
        in_sums = torch.stack(sums[::-1])
        return in_sums, coming, _over_time(in_sums, _before(h, states)), None


class _Gru(torch.autograd.Function):
    """``r, z = s(a_rz + h W_rz^T)``, ``n = tanh(a_n + r (h W_n^T + b))``, ``h' = n + z (h - n)``.

    Cho et al. 2014 as torch has it; ``(T, B, 3 H)``, ``(B, H)``, ``(3 H, H)``, ``(3 H,)`` -> ``(T, B, H)``.
    """

    @staticmethod
    def forward(projected: Tensor, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        across, size, states = weight.t(), h.shape[1], []
        parts = _steps(projected[..., : 2 * size]), _steps(projected[..., 2 * size :])
        for a_rz, a_n in zip(*parts, strict=True):
            inner = torch.addmm(bias, h, across)
            rz = torch.sigmoid(a_rz + inner[:, : 2 * size])
            n = torch.tanh(a_n + rz[:, :size] * inner[:, 2 * size :])
            h = n + rz[:, size:] * (h - n)
            states.append(h)
        return torch.stack(states)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        projected, h, weight, bias, states = ctx.saved_tensors
        size, before = h.shape[1], _before(h, states)
        inner = before @ weight.t() + bias
        r, z = torch.split(torch.sigmoid(projected[..., : 2 * size] + inner[..., : 2 * size]), size, -1)
        inner_n = inner[..., 2 * size :]
        n = torch.tanh(projected[..., 2 * size :] + r * inner_n)
        in_n = (1 - z) * (1 - n * n)
        in_rz = torch.cat([in_n * inner_n * r * (1 - r), (before - n) * z * (1 - z)], -1)
        # Everything is linear in the gradient of h': these are the factors of r, z and of what r scales.
        factors = torch.cat([in_rz, in_n * r], -1)
        coming, totals = torch.zeros_like(h), []
        steps = (reversed(_steps(part)) for part in (grad, factors, z))
        for given, factor, keep in zip(*steps, strict=True):
            total = coming + given
            totals.append(total)
            coming = total * keep + (torch.cat([total] * 3, 1) * factor) @ weight
        in_h = torch.stack(totals[::-1])
        in_inner = torch.cat([in_h] * 3, -1) * factors
        in_projected = torch.cat([in_inner[..., : 2 * size], in_h * in_n], -1)
        return in_projected, coming, _over_time(in_inner, before), in_inner.sum((0, 1))


class _Lstm(torch.autograd.Function):
    """``c' = s(f) c + s(i) tanh(g)``, ``h' = s(o) tanh(c')`` with ``i, f, g, o = a + h W^T``.

    Hochreiter and Schmidhuber 1997 as torch has it; ``(T, B, 4 H)``, ``(B, H)`` twice, ``(4 H, H)`` -> ``(T, B, H)``
    twice: states and cells.
    """

    @staticmethod
    def forward(projected: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        across, states, cells = weight.t(), [], []
        for a in _steps(projected):
            i, f, g, o = torch.split(torch.addmm(a, h, across), h.shape[1], 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
            cells.append(c)
        return torch.stack(states), torch.stack(cells)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor, in_cells: Tensor) -> tuple[Tensor | None, ...]:
        projected, h, c, weight, states, cells = ctx.saved_tensors
        before, cell = _before(h, states), _before(c, cells)
        i, f, g, o = torch.split(projected + before @ weight.t(), h.shape[1], -1)
        i, f, g, o, squashed = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), cells.tanh()
        factors = torch.cat([g * i * (1 - i), cell * f * (1 - f), i * (1 - g * g), squashed * o * (1 - o)], -1)
        coming, coming_c, sums = torch.zeros_like(h), torch.zeros_like(c), []
        through = o * (1 - squashed * squashed)
        steps = (reversed(_steps(part)) for part in (grad, in_cells, through, factors, f))
        for given, given_c, slope, factor, keep in zip(*steps, strict=True):
            total = coming + given
            total_c = coming_c + given_c + total * slope
            sums.append(torch.cat([total_c, total_c, total_c, total], 1) * factor)
            coming, coming_c = sums[-1] @ weight, total_c * keep
        in_sums = torch.stack(sums[::-1])
        return in_sums, coming, coming_c, _over_time(in_sums, before)


def _steps(x: Tensor) -> list[Tensor]:
    """Each time step; ``unbind`` would be two operators for each."""
    return [x.select(0, t) for t in range(x.shape[0])]


def _before(first: Tensor, states: Tensor) -> Tensor:
    """The state that each step started from."""
    return torch.cat([first.unsqueeze(0), states[:-1]])


def _over_time(in_sums: Tensor, before: Tensor) -> Tensor:
    """The gradient of ``W`` in ``h W^T``: ``(T, B, out)``, ``(T, B, in)`` -> ``(out, in)``, one product."""
    return in_sums.flatten(0, 1).t() @ before.flatten(0, 1)


Dropout = Callable[[Tensor, float], Tensor]
Weights = Sequence[Tensor]
Layer = Callable[[Tensor, list[Tensor], Weights], tuple[Tensor, list[Tensor]]]
"""Inputs ``(T, B, in)``, first states, weights -> outputs ``(T, B, H)``, last states."""


def _plain(smooth: bool) -> Layer:  # noqa: FBT001  the one thing that it says
    def run(x: Tensor, first: list[Tensor], weights: Weights) -> tuple[Tensor, list[Tensor]]:
        projected = _projected(x, weights[0], [*weights[2:4]])
        states: Tensor = _Plain.apply(projected, first[0], weights[1], smooth)  # type: ignore[no-untyped-call]  # torch's
        return states, [states[-1]]

    return run


def _gru(x: Tensor, first: list[Tensor], weights: Weights) -> tuple[Tensor, list[Tensor]]:
    projected = _projected(x, weights[0], [*weights[2:3]])
    bias = weights[3] if len(weights) > 3 else weights[1].new_zeros(weights[1].shape[0])  # noqa: PLR2004  its place
    states: Tensor = _Gru.apply(projected, first[0], weights[1], bias)  # type: ignore[no-untyped-call]  # torch's
    return states, [states[-1]]


def _lstm(x: Tensor, first: list[Tensor], weights: Weights) -> tuple[Tensor, list[Tensor]]:
    projected = _projected(x, weights[0], [*weights[2:4]])
    states, cells = _Lstm.apply(projected, *first, weights[1])  # type: ignore[no-untyped-call]  # torch's
    return states, [states[-1], cells[-1]]


def _projected(x: Tensor, weight: Tensor, biases: Sequence[Tensor]) -> Tensor:
    product = x @ weight.t()
    return product + sum(biases[1:], biases[0]) if biases else product


LAYERS: dict[str, tuple[Layer, int]] = {
    "gru": (_gru, 1),
    "lstm": (_lstm, 2),
    "rnn_relu": (_plain(smooth=False), 1),
    "rnn_tanh": (_plain(smooth=True), 1),
}
"""Torch's name for a kind of layer to the layer, and how many states it has."""


def recurrent(
    kind: str,
    x: Tensor,
    first: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001  torch's own signature
    num_layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001  likewise
    bidirectional: bool,  # noqa: FBT001  likewise
    batch_first: bool,  # noqa: FBT001  likewise
    *,
    drop: Dropout | None = None,
) -> tuple[Tensor, ...]:
    """What ``torch._VF.gru``, ``lstm``, ``rnn_tanh`` and ``rnn_relu`` compute.

    Args:
        kind: of :data:`LAYERS`.
        x: ``(T, B, in)``, or ``(B, T, in)`` with ``batch_first``.
        first: ``(layers * directions, B, H)``; LSTM has two such.
        weights: for each layer and direction of the input, of the state, and two biases.
        has_biases: whether there are biases.
        num_layers: how many layers.
        dropout: probability of dropping a unit between layers.
        train: whether to drop.
        bidirectional: whether each layer runs back through time as well.
        batch_first: see ``x``.
        drop: drops units with a probability.

    Returns:
        The last layer's outputs, and the last states of all.

    Raises:
        ExportError: too many time steps, or dropout that nobody carries out.
    """
    run, _ = LAYERS[kind]
    states = [first] if isinstance(first, Tensor) else list(first)
    steps = x.transpose(0, 1) if batch_first else x
    _refuse(kind, steps, dropping=train and dropout > 0 and num_layers > 1 and drop is None)
    each, ways = 4 if has_biases else 2, 2 if bidirectional else 1
    last: list[list[Tensor]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            forth = steps.flip(0) if way else steps
            found, ends = run(forth, [state[at] for state in states], weights[at * each : (at + 1) * each])
            outputs.append(found.flip(0) if way else found)
            last.append(ends)
        steps = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if drop is not None and train and dropout > 0 and layer + 1 < num_layers:
            steps = drop(steps, dropout)
    ends = [torch.stack(list(state)) for state in zip(*last, strict=True)]
    return steps.transpose(0, 1) if batch_first else steps, *ends


def _refuse(kind: str, steps: Tensor, *, dropping: bool) -> None:
    if steps.shape[0] > STEP_LIMIT:
        raise ExportError(
            f"{steps.shape[0]} time steps cannot be unrolled, at most {STEP_LIMIT}",
            where=f"torch.{kind}",
            remedy="Shorten the sequence by a strided nn.Conv1d or by pooling before it",
        )
    if dropping:
        raise ExportError(
            "dropout between recurrent layers cannot be exported",
            where=f"torch.{kind}",
            remedy="Set its dropout to 0 and use nn.Dropout between layers of one each",
        )
