from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _layer_check import RUNTIMES, Case, call, case, decomposed, exported, on
from torch import Tensor, nn
from torch.nn import functional


def _resized(**settings: Any) -> Callable[[Tensor], Tensor]:  # noqa: ANN401  whatever the function takes
    return lambda x: functional.interpolate(x, **settings)


def _up(shape: tuple[int, ...], **settings: Any) -> Case:  # noqa: ANN401  likewise
    name = ",".join(f"{key}={value}" for key, value in settings.items())
    return call(f"interpolate({name}) of {len(shape) - 2}d", _resized(**settings), shape)


RESAMPLED = [
    _up((2, 3, 4, 5), scale_factor=2),
    _up((2, 3, 5), scale_factor=3),
    _up((2, 3, 4, 5), size=(7, 3)),
    _up((2, 3, 4, 5), scale_factor=1.7),
    _up((2, 3, 4, 5), size=(7, 3), mode="nearest-exact"),
    _up((2, 3, 4, 5), size=(2, 3), mode="area"),
    *(
        _up(shape, mode=mode, align_corners=corners, **how)
        for corners in (True, False)
        for shape, mode, how in (
            ((2, 3, 4, 5), "bilinear", {"scale_factor": 2}),
            ((2, 3, 4, 5), "bilinear", {"size": (7, 3)}),
            ((2, 3, 4, 5), "bilinear", {"scale_factor": 1.7}),
            ((2, 3, 5), "linear", {"scale_factor": 2}),
            ((2, 3, 4, 5), "bicubic", {"scale_factor": 2}),
        )
    ),
]


def _pad(shape: tuple[int, ...], amounts: tuple[int, ...], mode: str) -> Case:
    return call(f"pad({amounts}, {mode})", lambda x: functional.pad(x, amounts, mode=mode), shape)


PADDED = [
    *(
        _pad(shape, amounts, mode)
        for mode in ("constant", "reflect", "replicate", "circular")
        for shape, amounts in (((2, 3, 5), (2, 1)), ((2, 3, 5), (4, 0)), ((2, 3, 5, 4), (2, 1, 0, 2)))
    ),
    _pad((2, 3, 5), (-1, 2), "constant"),
    case("ConstantPad1d", lambda: nn.ConstantPad1d(2, 1.5), (2, 3, 4)),
    case("CircularPad2d", lambda: nn.CircularPad2d(1), (2, 3, 4, 4)),
    case("ReflectionPad2d", lambda: nn.ReflectionPad2d(2), (2, 3, 4, 4)),
]


def _assigned(x: Tensor) -> Tensor:
    y = x.new_zeros(2, 3, 8)
    y[:, :, 1:5] = x
    y[:, 0] = x[:, 1].repeat(1, 2)
    y[:, 1, ::2] = x[:, 2] * x[:, 0]
    return y


MOVED: dict[str, Callable[[Tensor], Any]] = {
    "assignment to slices": _assigned,
    "cat": lambda x: torch.cat([x, x * x, x], 1),
    "chunk": lambda x: x.chunk(2, 1),
    "circular shift": lambda x: x.roll(1, 1),
    "diagonal": lambda x: torch.diagonal(x, 1, 1, 2),
    "every other": lambda x: x[:, ::2],
    "expand": lambda x: x[:, :1].expand(-1, 3, -1) * 2,
    "flatten": lambda x: x.flatten(1),
    "flip": lambda x: x.flip(1),
    "last": lambda x: x[:, -1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "split": lambda x: torch.split(x, [1, 2], 1)[1],
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "stack": lambda x: torch.stack([x, x.exp()], 1),
    "transpose": lambda x: x.transpose(1, 2).reshape(2, -1),
    "tril": lambda x: x.tril(),
    "unbind": lambda x: x.unbind(1)[1],
    "unflatten": nn.Unflatten(2, (2, 2)),
    "windows": lambda x: x.unfold(2, 3, 1),
    "windows apart": lambda x: x.unfold(1, 1, 2),
}

SHAPED = [
    *(call(name, function, (2, 3, 4)) for name, function in MOVED.items()),
    case("PixelShuffle", lambda: nn.PixelShuffle(2), (2, 8, 3, 3)),
    case("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), (2, 2, 4, 4)),
    case("ChannelShuffle", lambda: nn.ChannelShuffle(2), (2, 4, 3, 3)),
    case("Unfold", lambda: nn.Unfold(2), (2, 3, 4, 4)),
    case("Fold", lambda: nn.Fold((4, 4), 2), (2, 12, 9)),
]


@pytest.mark.parametrize("layer", [*RESAMPLED, *PADDED, *SHAPED], ids=str)
def test_what_moves_elements_is_torchs(layer: Case) -> None:
    assert decomposed(layer) > 10


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_resampling_and_padding_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, RESAMPLED), runtime) > 500
    assert exported(on(runtime, PADDED), runtime) > 500


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_moves_on_a_runtime(runtime: str) -> None:
    assert exported(on(runtime, SHAPED), runtime) > 500
