from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from _models import draws_of, fedavg
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from edgepfl.plan import Entry
from exporters import onnx
from exporters.binding import Binding
from exporters.draws import Padding
from exporters.eager import EagerRunner
from exporters.entries import entry_functions
from exporters.graph import trace
from exporters.model import model_of, seeded
from exporters.native import convolution_backward, onnx_table
from exporters.ort import PoisonedOnnx

aten = torch.ops.aten

CASES = [
    *itertools.product([3], [1, 2, 3], [0, 1], [1, 2], [1, 2, 4]),
    (1, 2, 0, 1, 1),
    (1, 1, 0, 1, 4),
    (5, 2, 2, 1, 1),
]


def _gradient(dims: int, kernel: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, *(13, 12)[:dims], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 4 // groups, *(kernel,) * dims, dtype=torch.float64, requires_grad=True)
    conv = functional.conv1d if dims == 1 else functional.conv2d
    wanted = conv(x, weight, None, stride, padding, dilation, groups)
    grad = torch.randn_like(wanted)
    gradients = torch.autograd.grad(wanted, (x, weight), grad)
    settings = ([stride], [padding] * dims, [dilation] * dims, False, [0], groups)
    with torch.no_grad():
        in_x, in_weight, in_bias = convolution_backward(grad, x, weight, None, *settings, [True, True, False])
    assert in_x is not None
    assert in_weight is not None
    torch.testing.assert_close((in_x, in_weight), gradients)
    assert in_bias is None


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "groups"), CASES)
def test_gradients_are_torchs(dims: int, kernel: int, stride: int, padding: int, dilation: int, groups: int) -> None:
    _gradient(dims, kernel, stride, padding, dilation, groups)


def _left(layer: nn.Module, x: Tensor) -> list[bool]:
    """Whether each convolution that a trace of the gradients holds is a transposed one."""

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(layer, params, (x,))
        return outputs.square().sum()

    params = {name: tensor.detach() for name, tensor in layer.named_parameters()}
    traced = make_fx(torch.func.grad(loss, argnums=(0, 1)), decomposition_table=dict(onnx_table()))(params, x)
    return [bool(node.args[6]) for node in traced.graph.nodes if node.target is aten.convolution.default]


def test_a_gradient_is_a_transposed_convolution_where_windows_are_many() -> None:
    assert _left(nn.Conv2d(2, 3, 3), torch.randn(2, 2, 8, 8)) == [True]
    assert _left(nn.Conv1d(2, 2, 3, groups=2), torch.randn(2, 2, 8)) == [True]
    assert _left(nn.Conv2d(2, 3, 1), torch.randn(2, 2, 8, 8)) == []
    assert _left(nn.Conv1d(2, 3, 3), torch.randn(2, 2, 8)) == []
    assert _left(nn.ConvTranspose1d(2, 3, 3), torch.randn(2, 2, 8)) == [True]


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((1, 20, 20), (nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(3, 4, 3, stride=2, padding=1))),
        ((2, 9, 8), (nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Tanh(), nn.Conv2d(4, 4, (2, 3), dilation=(1, 2)))),
        ((1, 40), (nn.Conv1d(1, 3, 5), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(3, 4, 3))),
        ((3, 9), (nn.ConvTranspose1d(3, 3, 3, stride=2, output_padding=1), nn.ReLU(), nn.Conv1d(3, 2, 3))),
    ],
)
def test_a_network_for_onnx_is_the_eager_one(shape: tuple[int, ...], layers: tuple[nn.Module, ...]) -> None:
    body = nn.Sequential(*layers, nn.Flatten())
    width = body(torch.zeros(1, *shape)).shape[1]
    model = model_of(seeded(lambda: nn.Sequential(body, nn.Linear(width, 3)), 0), [shape], batch=4)
    binding = Binding(fedavg(), model)
    traced = trace(entry_functions(binding)[Entry.STEP], onnx_table())
    runner = PoisonedOnnx(onnx.export(traced, model), traced.ports)
    feeds = draws_of(binding).feeds(traced.ports.inputs, Padding.SOME)
    wanted = EagerRunner(fedavg(), model, dtype=torch.float64).run(Entry.STEP, feeds)
    for _ in range(2):
        found = runner.run(feeds)
        assert found.keys() == wanted.keys()
        for name, array in found.items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("operator", [torch.sum, torch.mean])
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize(
    ("dim", "parts"), [((0, 2, 3), 2), ((-1, 0), 2), ((0, -3), 2), ((2, 3), 1), ((0,), 1), ((1,), 1)]
)
def test_a_sum_over_the_minibatch_and_other_axes_is_two(
    operator: Callable[..., Tensor],
    dim: tuple[int, ...],
    parts: int,
    keepdim: bool,  # noqa: FBT001  of torch's signature
) -> None:
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    traced = make_fx(lambda x: operator(x, dim, keepdim), decomposition_table=dict(onnx_table()))(x)
    assert sum(node.op == "call_function" for node in traced.graph.nodes) == parts
    torch.testing.assert_close(traced(x), operator(x, dim, keepdim))


def test_batch_normalisation_in_a_graph_rounds_no_worse_than_torch() -> None:
    module = seeded(lambda: nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Flatten()), 0)
    model = model_of(nn.Sequential(module, nn.Linear(16 * 24 * 24, 3)), [(2, 24, 24)], batch=8)
    binding = Binding(fedavg(), model)
    traced = trace(entry_functions(binding)[Entry.STEP], onnx_table())
    runner = PoisonedOnnx(onnx.export(traced, model), traced.ports)
    draws, errors = draws_of(binding), []
    for _ in range(5):
        feeds = draws.feeds(traced.ports.inputs, Padding.NONE)
        exact = EagerRunner(fedavg(), model, dtype=torch.float64).run(Entry.STEP, feeds)
        found, eager = runner.run(feeds), EagerRunner(fedavg(), model).run(Entry.STEP, feeds)
        name = next(name for name in exact if "running_mean" in name)
        errors.append([np.abs(each[name] - exact[name]).max() for each in (found, eager)])
    ours, torchs = np.median(errors, 0)
    assert ours < 3 * torchs  # summed in one go, it is 10 to 20 times torch's
