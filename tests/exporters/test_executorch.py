"""Programs for ExecuTorch: right on the official runtime, the same bytes every time, refused where they cannot be."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch
from _components import absent
from _models import around, draws_of, fedavg, reference_of, tiny_cnn
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from edgepfl.errors import ConfigError, ExportError, GraphFailed
from edgepfl.plan import Entry, Graph, Kind, Port, TensorSpec
from exporters import xnnpack_layers
from exporters.binding import Binding
from exporters.check import Checked, check
from exporters.entries import entry_functions
from exporters.executorch import export
from exporters.executorch_nodes import nodes
from exporters.executorch_runner import PoisonedExecutorch
from exporters.graph import TracedGraph, trace
from exporters.model import Model

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _installed() -> None:
    if importlib.util.find_spec("executorch") is None:
        absent("executorch", "pip install executorch")


def _traced(model: Model, entry: Entry = Entry.STEP) -> TracedGraph:
    return trace(entry_functions(Binding(fedavg(), model))[entry], xnnpack_layers.table())


def _check(model: Model, traced: TracedGraph, data: bytes) -> bytes:
    binding = Binding(fedavg(), model)
    reference = reference_of(binding)
    checked = Checked(traced.entry, traced.ports, functools.partial(reference.run, traced.entry))
    return check(checked, PoisonedExecutorch(data, traced.ports).run, draws_of(binding), where="executorch")


@functools.cache
def _tiny(entry: Entry = Entry.STEP) -> tuple[TracedGraph, bytes]:
    traced = _traced(tiny_cnn(), entry)
    return traced, export(traced, tiny_cnn())


def test_a_step_is_right_on_the_runtime_and_all_of_it_is_delegated() -> None:
    traced, data = _tiny()
    assert _check(tiny_cnn(), traced, data)
    found = nodes(data)
    assert found.delegates == 1
    assert found.delegated["batch_matrix_multiply"] + found.delegated["fully_connected"] >= 5
    # the labels, which are integers, stay outside
    assert set(found.portable) <= {"dim_order_ops::_to_dim_order_copy.out", "executorch_prim::et_view.default"}
    assert len(data) < 40_000


@pytest.mark.parametrize("entry", [Entry.BEGIN, Entry.EVALUATE])
def test_other_graphs_are_right_too(entry: Entry) -> None:
    traced, data = _tiny(entry)
    assert _check(tiny_cnn(), traced, data)
    assert nodes(data).delegates >= 1


def test_a_program_is_the_same_bytes_every_time_and_made_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    _, data = _tiny(Entry.EVALUATE)
    capfd.readouterr()
    assert export(_traced(tiny_cnn(), Entry.EVALUATE), tiny_cnn()) == data
    assert capfd.readouterr() == ("", "")


def _pooling_backward() -> tuple[TracedGraph, Tensor]:
    """The kernel that adds to what an earlier call left, alone in a graph; and what it should give."""
    settings = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    x, coming = torch.arange(16.0).reshape(1, 1, 4, 4), torch.ones(1, 1, 2, 2)

    def gradient(x: Tensor, coming: Tensor) -> tuple[Tensor]:
        _, indices = aten.max_pool2d_with_indices(x, *settings)
        return (aten.max_pool2d_with_indices_backward(coming, x, *settings, indices),)

    ports = [
        Port(name, Kind.SLOT, "x", TensorSpec(tuple(size)), name)
        for name, size in (("x", x.shape), ("coming", coming.shape))
    ]
    graph = Graph(tuple(ports), (Port("next", Kind.SLOT, "x", TensorSpec(tuple(x.shape)), "x"),))
    return TracedGraph(Entry.STEP, graph, make_fx(gradient)(x, coming), (x, coming)), gradient(x, coming)[0]


def test_the_kernel_that_adds_to_what_an_earlier_call_left_is_caught() -> None:
    traced, expected = _pooling_backward()
    data = export(traced)
    assert nodes(data).portable["aten::max_pool2d_with_indices_backward.grad_input"] == 1
    run = PoisonedExecutorch(data, traced.ports).run
    feeds = {port.name: x.numpy() for port, x in zip(traced.ports.inputs, traced.example, strict=True)}
    found = run(feeds)["next"]
    assert not np.allclose(found, expected.numpy(), rtol=1e-4)


def test_an_output_that_is_another_output_is_one_of_its_own() -> None:
    x = torch.tensor([2.0, 3.0])

    def thrice(x: Tensor) -> tuple[Tensor, ...]:
        return x.clone(), x * 5, (x * 5).clone(), x * 5

    outputs = tuple(Port(f"next:{i}", Kind.SLOT, f"{i}", TensorSpec((2,))) for i in range(4))
    ports = Graph((Port("x", Kind.SLOT, "x", TensorSpec((2,))),), outputs)
    traced = TracedGraph(Entry.BEGIN, ports, make_fx(thrice)(x), (x,))
    found = PoisonedExecutorch(export(traced), ports).run({"x": x.numpy()})
    assert [found[port.name].tolist() for port in outputs] == [[2, 3], [10, 15], [10, 15], [10, 15]]
    assert len({id(array) for array in found.values()}) == len(outputs)


class _Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(-1).values


def test_an_operator_without_a_kernel_is_refused_by_name() -> None:
    model = around(_Sorted())
    with pytest.raises(ExportError, match="operator sort has no kernel in runtime executorch") as caught:
        export(_traced(model, Entry.PREDICT), model)
    assert caught.value.where == "module 1 (_Sorted)"
    assert caught.value.remedy


def test_the_runner_refuses_what_is_no_program_or_another_one() -> None:
    traced, data = _tiny()
    with pytest.raises(GraphFailed, match="executorch refuses the program"):
        PoisonedExecutorch(b"\0" * 4096, traced.ports)
    with pytest.raises(GraphFailed, match="border is"):
        PoisonedExecutorch(data, _traced(around(nn.ReLU())).ports)


def test_what_is_no_program_has_no_nodes() -> None:
    _, data = _tiny()
    for wrong in (b"", b"\0" * 64, data[:200], data[:8] + b"\xff" * 4096):
        with pytest.raises(ConfigError, match="not an ExecuTorch program"):
            nodes(wrong)
    assert sum(nodes(data).delegated.values()) > 40


def test_a_run_leaves_its_inputs_alone_and_gives_the_same_again() -> None:
    traced, data = _tiny()
    run = PoisonedExecutorch(data, traced.ports).run
    feeds = {port.name: np.ones(port.spec.shape, port.spec.dtype) for port in traced.ports.inputs}
    first, again = run(feeds), run(feeds)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert array.flags.writeable
    assert all((array == 1).all() for array in feeds.values())


def test_a_bundle_for_onnx_alone_never_imports_executorch() -> None:
    code = "import sys, exporters.build; print([m for m in sys.modules if m.split('.')[0] == 'executorch'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    assert "Traceback" not in done.stderr
