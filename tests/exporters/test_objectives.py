"""Each loss and metric is torch's own, for each example, in values and gradients."""

from __future__ import annotations

import decimal
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from edgepfl.errors import ExportError
from edgepfl.plan import ExampleSpec
from exporters.objectives import (
    METRICS,
    OBJECTIVES,
    PerExample,
    accuracy,
    bce,
    binary_accuracy,
    cross_entropy,
    huber,
    mixed,
    mse,
)

SIZE = 5
Torchs = Callable[..., Tensor]

EXTREMES = (0.0, 1.0, -1.0, 30.0, -30.0, 1e4, -1e4, 88.8, 1e-8)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _classes(*shape: int, high: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


def _by_torch(function: Torchs, outputs: Tensor, y: Tensor) -> Tensor:
    """One number for each example: torch's for each position, and their mean."""
    each = function(outputs, y, reduction="none")
    return each.flatten(1).mean(1) if each.dim() > 1 else each


def _same(loss: PerExample, function: Torchs, outputs: Tensor, y: Tensor) -> Tensor:
    """Compare values and gradients; gives the gradient."""
    rates = torch.linspace(0.5, 2, len(outputs), dtype=outputs.dtype)  # an example's own, so that a mix-up shows
    mine, torchs = (outputs.clone().requires_grad_() for _ in range(2))
    found, wanted = loss(mine, y), _by_torch(function, torchs, y)
    assert found.shape == (len(outputs),)
    torch.testing.assert_close(found, wanted)
    (found_slope,) = torch.autograd.grad(found @ rates, mine)
    (wanted_slope,) = torch.autograd.grad(wanted @ rates, torchs)
    assert torch.isfinite(found_slope).all()
    torch.testing.assert_close(found_slope, wanted_slope)
    return found_slope


@pytest.mark.parametrize("positions", [(), (4,), (2, 3)])
def test_cross_entropy_is_torchs_with_any_positions(positions: tuple[int, ...]) -> None:
    logits, y = _normal(SIZE, 3, *positions), _classes(SIZE, *positions, high=3)
    slope = _same(cross_entropy, functional.cross_entropy, logits, y)
    assert slope.abs().max() > 0.01


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mse", functional.mse_loss),
        ("huber", functional.huber_loss),
        ("bce", functional.binary_cross_entropy_with_logits),
    ],
)
def test_losses_of_numbers_are_torchs_at_any_shape(name: str, function: Torchs, shape: tuple[int, ...]) -> None:
    outputs, y = 2 * _normal(SIZE, *shape), _normal(SIZE, *shape, seed=1)
    y = y.sigmoid() if name == "bce" else y
    slope = _same(OBJECTIVES[name].loss, function, outputs, y)
    assert slope.shape == outputs.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_overflow_nowhere(dtype: torch.dtype) -> None:
    logits = torch.tensor(EXTREMES, dtype=dtype)
    pairs = torch.stack([logits, -logits.roll(1)], 1)
    for label in (0, 1):
        _same(cross_entropy, functional.cross_entropy, pairs, torch.full((len(logits),), label))
        y = torch.full((len(logits),), float(label), dtype=dtype)
        found = bce(logits, y)
        torch.testing.assert_close(found, functional.binary_cross_entropy_with_logits(logits, y, reduction="none"))
        moved = logits.clone().requires_grad_()
        (slope,) = torch.autograd.grad(bce(moved, y).sum(), moved)
        torch.testing.assert_close(slope, logits.sigmoid() - y)


def test_the_loss_of_a_logit_of_zero_has_the_right_gradient() -> None:
    """A head that starts at zero, as many do, gives nothing but zeros."""
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bce(logits, torch.tensor([0.0, 1.0], dtype=torch.float64)).sum(), logits)
    assert slope.tolist() == [0.5, -0.5]
    assert bce(logits, torch.full((2,), 0.5).double()).tolist() == pytest.approx([0.6931471805599453] * 2)


def test_huber_at_its_corners() -> None:
    errors = torch.tensor([0.0, 1.0, -1.0, 1 + 1e-9, -1 - 1e-9, 1e6, -1e6, 1e-12], dtype=torch.float64)
    slope = _same(huber, functional.huber_loss, errors, torch.zeros(8, dtype=torch.float64))
    assert slope[0] == 0
    assert huber(errors, torch.zeros_like(errors))[1:3].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", ["mse", "huber", "bce", "mae"])
@pytest.mark.parametrize(("outputs", "y"), [((5, 1), (5,)), ((5,), (5, 1)), ((5, 2), (5, 1)), ((5, 3, 1), (5, 3))])
def test_shapes_that_would_be_broadcast_are_refused(name: str, outputs: tuple[int, ...], y: tuple[int, ...]) -> None:
    judge = METRICS[name] if name in METRICS else OBJECTIVES[name].loss
    with pytest.raises(ExportError, match=r"targets \[5") as caught:
        judge(torch.zeros(outputs), torch.zeros(y))
    assert caught.value.where == "loss"


@pytest.mark.parametrize("judge", [cross_entropy, accuracy, binary_accuracy])
@pytest.mark.parametrize(("outputs", "y"), [((5, 3, 4), (5, 1)), ((5, 3), (5, 1)), ((5, 5, 5), (5,))])
def test_so_are_classes_and_labels_of_another_shape(
    judge: PerExample, outputs: tuple[int, ...], y: tuple[int, ...]
) -> None:
    with pytest.raises(ExportError, match=r"targets \[5") as caught:
        judge(torch.zeros(outputs), torch.zeros(y, dtype=torch.int64))
    assert "outputs" in str(caught.value)


def test_accuracy_counts_what_argmax_finds() -> None:
    logits, y = _normal(SIZE, 3, 4), _classes(SIZE, 4, high=3)
    expected = [sum(int(logits[i, :, j].argmax()) == int(y[i, j]) for j in range(4)) / 4 for i in range(SIZE)]
    assert accuracy(logits, y).tolist() == expected
    assert 0 < sum(expected) < SIZE
    assert accuracy(logits[:, :, 0], logits[:, :, 0].argmax(1)).tolist() == [1.0] * SIZE


def test_binary_accuracy_is_the_share_of_right_labels() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, -3.0], [-2.0, -1.0, 0.5, -3.0]])
    y = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    assert binary_accuracy(logits, y).tolist() == [0.5, 1.0]
    assert binary_accuracy(logits, 1 - y).tolist() == [0.5, 0.0]


def test_the_errors_as_metrics_are_torchs() -> None:
    outputs, y = _normal(SIZE, 2), _normal(SIZE, 2, seed=1)
    torch.testing.assert_close(METRICS["mae"](outputs, y), functional.l1_loss(outputs, y, reduction="none").mean(1))
    torch.testing.assert_close(METRICS["mse"](outputs, y), functional.mse_loss(outputs, y, reduction="none").mean(1))


def test_the_targets_that_losses_call_for() -> None:
    outputs = torch.zeros(SIZE, 3, 4)
    assert OBJECTIVES["cross_entropy"].target(outputs) == ExampleSpec((4,), "int64", high=3)
    for name in ("mse", "huber", "bce"):
        assert OBJECTIVES[name].target(outputs) == ExampleSpec((3, 4))
    assert {metric for each in OBJECTIVES.values() for metric in each.metrics} <= METRICS.keys()


SHARES = (0.5, 0.3, 0.2)


@pytest.mark.parametrize("positions", [(), (4,), (2, 3)])
def test_a_mixture_of_classifiers_is_the_mean_of_their_probabilities(positions: tuple[int, ...]) -> None:
    each = [3 * _normal(SIZE, 4, *positions, seed=seed) for seed in range(3)]
    found = mixed(cross_entropy, each, torch.tensor(SHARES, dtype=torch.float64))
    wanted = sum(share * logits.softmax(1) for share, logits in zip(SHARES, each, strict=True))
    torch.testing.assert_close(found.exp(), wanted)
    torch.testing.assert_close(found.logsumexp(1), torch.zeros(SIZE, *positions, dtype=torch.float64))


@pytest.mark.parametrize("labels", [(), (1,), (4,), (2, 3)])
def test_a_mixture_of_labels_is_the_mean_of_each_ones_probability(labels: tuple[int, ...]) -> None:
    each = [3 * _normal(SIZE, *labels, seed=seed) for seed in range(3)]
    found = mixed(bce, each, torch.tensor(SHARES, dtype=torch.float64))
    wanted = sum(share * logits.sigmoid() for share, logits in zip(SHARES, each, strict=True))
    torch.testing.assert_close(found.sigmoid(), wanted)
    assert found.shape == (SIZE, *labels)


def test_a_mixture_of_numbers_is_their_mean() -> None:
    each = [_normal(SIZE, 2, seed=seed) for seed in range(3)]
    wanted = sum(share * outputs for share, outputs in zip(SHARES, each, strict=True))
    for loss in (mse, huber, functional.l1_loss):  # torch's stands for a user's own
        torch.testing.assert_close(mixed(loss, each, torch.tensor(SHARES, dtype=torch.float64)), wanted)
    assert mixed(mse, each[:1], torch.ones(1)).dtype is torch.float64


def _precise(each: list[list[float]], shares: list[float]) -> list[float]:
    """``log sum_m share_m softmax(logits_m)`` of one row each, with fractions of any size."""
    with decimal.localcontext(prec=60, Emin=-decimal.MAX_EMAX, Emax=decimal.MAX_EMAX):
        total = [decimal.Decimal(0)] * len(each[0])
        for share, row in zip(shares, each, strict=True):
            powers = [decimal.Decimal(value).exp() for value in row]
            for place, power in enumerate(powers):
                total[place] += decimal.Decimal(share) * power / sum(powers)
        return [float(value.ln()) for value in total]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shares", [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.75, 0.25], [2.0**-100, 1.0]])
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([0.0, 0.0], [200.0, -200.0]),
        ([1000.0, -1000.0], [-1000.0, 1000.0]),
        ([1e4, 0.0], [1e4, 0.0]),
        ([88.8, -88.8], [1e-8, 0.0]),
        ([-300.0, 300.0], [-100.0, 100.0]),
    ],
)
def test_mixtures_of_extreme_logits_are_finite_and_right(
    one: list[float], two: list[float], shares: list[float], dtype: torch.dtype
) -> None:
    """Of a model without a share, however sure it is, nothing is left, and of one with a share everything."""
    each, weights = [torch.tensor([row], dtype=dtype) for row in (one, two)], torch.tensor(shares, dtype=dtype)
    wanted = torch.tensor([_precise([each[0][0].tolist(), each[1][0].tolist()], shares)], dtype=dtype)
    found = mixed(cross_entropy, each, weights)
    torch.testing.assert_close(found, wanted)
    logits = [(row[:, 1] - row[:, 0]) for row in each]  # the same as the logit of the second class
    torch.testing.assert_close(mixed(bce, logits, weights), wanted[:, 1] - wanted[:, 0])
