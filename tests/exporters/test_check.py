"""The faults that were found in current exporters and runtimes, planted again: each must be caught."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from _models import draws_of, fedavg, reference_of, tiny_cnn
from torch import Tensor, nn
from torch.func import grad_and_value

from edgepfl.bundle import golden_vectors
from edgepfl.errors import ExportError, GraphMismatch
from edgepfl.plan import Entry, Kind, Port
from exporters import onnx
from exporters.binding import Binding
from exporters.check import Arrays, Checked, Run, _agreed, check
from exporters.convolution import convolution_backward
from exporters.decompositions import OWN, Table, complete
from exporters.draws import Draws, Padding
from exporters.entries import EntryFunction, Outputs, Values, entry_functions
from exporters.graph import TracedGraph, trace
from exporters.model import model_of
from exporters.ort import PoisonedOnnx

aten = torch.ops.aten


def _traced(binding: Binding, table: Table | None = None) -> tuple[TracedGraph, Checked]:
    traced = trace(entry_functions(binding)[Entry.STEP], table)
    reference = reference_of(binding)
    return traced, Checked(Entry.STEP, traced.ports, lambda feeds: reference.run(Entry.STEP, feeds))


def _runner(traced: TracedGraph) -> Run:
    return PoisonedOnnx(onnx.export(traced), traced.ports).run


@functools.cache
def _tiny() -> tuple[TracedGraph, Checked, Run]:
    """The step of the tiny model, exported once."""
    traced, checked = _traced(Binding(fedavg(), tiny_cnn()))
    return traced, checked, _runner(traced)


def _tiny_draws() -> Draws:
    return draws_of(Binding(fedavg(), tiny_cnn()))


def _cross_entropy_step(binding: Binding) -> EntryFunction:
    """``w - gradient of torch's own mean cross-entropy``, which counts padding rows as guesses at class 0."""
    ports = (*binding.slot_ports(Entry.STEP), *binding.batch_ports)

    def call(values: Values) -> Outputs:
        params = {name: values[f"x/{name}"] for name in binding.model.specs}

        def loss(tensors: dict[str, Tensor]) -> Tensor:
            logits = torch.func.functional_call(binding.model.module, tensors, (values["batch:x0"],))
            logits = values["batch:weight"][:, None] * logits  # so that padding rows have no gradient
            classes = values["batch:y"] * (values["batch:weight"] > 0)
            return nn.functional.cross_entropy(logits, classes)

        gradient, _ = grad_and_value(loss)(params)
        return [
            (_next(port), params[port.tensor] - gradient[port.tensor])
            for port in ports
            if port.kind is Kind.SLOT and port.group == "x"
        ]

    return EntryFunction(Entry.STEP, ports, call)


def _next(port: Port) -> Port:
    return Port(f"next:{port.name}", port.kind, port.group, port.spec, port.tensor)


def test_a_gradient_that_is_batch_size_times_too_large_is_caught() -> None:
    binding = Binding(fedavg(), model_of(nn.Linear(5, 3), [(5,)], batch=8))
    function = _cross_entropy_step(binding)

    def reference(feeds: Arrays) -> Arrays:
        values = {name: torch.from_numpy(np.array(array)) for name, array in feeds.items()}
        values |= {name: value.double() for name, value in values.items() if value.is_floating_point()}
        filled = {p.name: values.get(p.name, torch.zeros(p.spec.shape)) for p in function.inputs}
        return {port.name: tensor.detach().numpy() for port, tensor in function.call(filled)}

    right, wrong = trace(function), trace(function, OWN)
    checked = Checked(Entry.STEP, right.ports, reference)
    assert check(checked, _runner(right), draws_of(binding))
    with pytest.raises(GraphMismatch, match=r"step.*next:x/bias is off by"):
        check(checked, _runner(wrong), draws_of(binding))


def test_outputs_that_add_to_what_an_earlier_call_left_are_caught() -> None:
    _, checked, run = _tiny()
    left: dict[str, Any] = {}

    def accumulating(feeds: Arrays) -> Arrays:
        for name, array in run(feeds).items():
            left[name] = left.get(name, 0) + array  # right on the first call
        return left

    with pytest.raises(GraphMismatch, match="onnx graph step") as caught:
        check(checked, accumulating, _tiny_draws(), where="onnx")
    assert "is off by" in caught.value.what


def test_outputs_that_are_wrong_only_when_the_same_inputs_come_again_are_caught() -> None:
    _, checked, run = _tiny()
    before: list[Arrays] = []

    def drifting(feeds: Arrays) -> Arrays:
        again = sum(feeds is other for other in before)
        before.append(feeds)
        return {name: array * (1 + 0.01 * (again == 2)) for name, array in run(feeds).items()}

    with pytest.raises(GraphMismatch, match="is off by"):
        check(checked, drifting, _tiny_draws())
    assert len(before) == 3


def test_outputs_that_are_never_written_are_caught() -> None:
    _, checked, run = _tiny()

    def forgetful(feeds: Arrays) -> Arrays:
        found = dict(run(feeds))
        found["metric:loss"] = np.full((), np.nan, np.float32)
        return found

    with pytest.raises(GraphMismatch, match="metric:loss is off by nan") as caught:
        check(checked, forgetful, _tiny_draws())
    assert caught.value.where.startswith("graph graph step")


def test_convolution_has_no_gradient_of_its_own_in_onnx() -> None:
    own = (aten.convolution.default, aten.convolution_backward.default)
    table = {operator: function for operator, function in complete().items() if operator not in own}
    model = tiny_cnn()
    traced, _ = _traced(Binding(fedavg(), model), table)
    with pytest.raises(ExportError, match="convolution_backward has no translation") as caught:
        onnx.export(traced, model)
    assert caught.value.where == "module conv (Conv1d)"


def _unflipped(*args: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # noqa: ANN401  aten's arguments
    in_x, in_weight, in_bias = convolution_backward(*args)
    return in_x, None if in_weight is None else in_weight.flip(2), in_bias


def test_a_wrong_gradient_of_convolution_is_caught() -> None:
    binding = Binding(fedavg(), tiny_cnn())
    traced, checked = _traced(binding, {**complete(), aten.convolution_backward.default: _unflipped})
    with pytest.raises(GraphMismatch, match=r"next:x/conv\.weight is off by") as caught:
        check(checked, _runner(traced), draws_of(binding))
    assert caught.value.remedy


def test_the_golden_vectors_are_what_the_reference_gives() -> None:
    traced, checked, run = _tiny()
    feeds, expected, _ = golden_vectors(traced.ports, check(checked, run, _tiny_draws()), where="golden")
    assert set(feeds["batch:weight"].tolist()) == {0.0, 1.0}  # padding rows are in it
    for name, array in checked.reference(feeds).items():
        np.testing.assert_array_equal(array.astype(np.float32), expected[name])


def _constant(traced: TracedGraph, value: float) -> Run:
    return lambda _: {port.name: np.full(port.spec.shape, value) for port in traced.ports.outputs}


def test_a_reference_that_is_not_finite_is_told_apart_from_a_wrong_graph() -> None:
    traced, _, run = _tiny()
    with pytest.raises(ExportError, match="not finite") as caught:
        check(Checked(Entry.STEP, traced.ports, _constant(traced, np.inf)), run, _tiny_draws())
    assert caught.value.where == "step"


def test_where_the_reference_jumps_other_inputs_are_tried_and_a_wrong_graph_is_still_caught() -> None:
    traced, checked, run = _tiny()
    rng, calls = np.random.default_rng(0), 0

    def jumpy(feeds: Arrays) -> Arrays:
        """Off by a little at random in the first calls, as where a switch is near."""
        nonlocal calls
        calls += 1
        return {name: array + (calls < 8) * 0.01 * rng.random() for name, array in checked.reference(feeds).items()}

    assert check(Checked(Entry.STEP, traced.ports, jumpy), run, _tiny_draws())
    assert calls > 8

    def jumping(_: Arrays) -> Arrays:
        return _constant(traced, rng.random())({})

    with pytest.raises(GraphMismatch, match="is off by"):
        check(Checked(Entry.STEP, traced.ports, jumping), run, _tiny_draws())


def _switching(checked: Checked, spare: str, off: float) -> Run:
    """A reference in which a switch is near at every input, and meets another half of the outputs each time.

    Args:
        checked: the right reference.
        spare: an output that it never meets.
        off: how far it moves the others, beside what they are.
    """
    rng = np.random.default_rng(0)

    def reference(feeds: Arrays) -> Arrays:
        right = checked.reference(feeds)
        return {name: array + (name != spare and rng.random() < 0.5) * off for name, array in right.items()}

    return reference


def test_where_a_switch_is_near_at_all_inputs_each_output_must_agree_at_one() -> None:
    traced, checked, run = _tiny()
    reference = Checked(Entry.STEP, traced.ports, _switching(checked, "", 0.1))
    agreed = _agreed(reference, run, _tiny_draws(), Padding.NONE, "here")
    assert agreed.expected.keys() == {port.name for port in traced.ports.outputs}
    spared = "next:x/head.bias"
    steady = Checked(Entry.STEP, traced.ports, _switching(checked, spared, 0.1))

    def wrong(feeds: Arrays) -> Arrays:
        return {name: array + (name == spared) * np.float32(0.05) for name, array in run(feeds).items()}

    with pytest.raises(GraphMismatch, match=f"{spared} is off by 0.05"):
        _agreed(steady, wrong, _tiny_draws(), Padding.NONE, "here")


def test_nor_may_an_output_ever_be_further_off_than_the_switch_explains() -> None:
    traced, checked, run = _tiny()
    reference = Checked(Entry.STEP, traced.ports, _switching(checked, "", 0.01))
    with pytest.raises(GraphMismatch, match="is off by"):
        _agreed(reference, lambda feeds: _far_off(run(feeds)), _tiny_draws(), Padding.NONE, "here")
    assert _agreed(reference, run, _tiny_draws(), Padding.NONE, "here").feeds


def test_where_rounding_does_as_much_at_all_inputs_it_is_said() -> None:
    traced, checked, run = _tiny()
    rng = np.random.default_rng(0)

    def shaken(feeds: Arrays) -> Arrays:
        return {name: array + rng.choice([-0.1, 0.1]) for name, array in checked.reference(feeds).items()}

    with pytest.raises(GraphMismatch, match=r"is off by 0\.1.*: rounding alone does as much here") as caught:
        _agreed(Checked(Entry.STEP, traced.ports, shaken), run, _tiny_draws(), Padding.NONE, "here")
    assert "--batch" in caught.value.remedy
    assert caught.value.where == "here"


_turns = itertools.cycle(range(5))


def _far_off(found: Arrays) -> Arrays:
    """One output at a time, as no switch would do it."""
    turn = next(_turns)
    return {name: array + np.float32(10) * (place % 5 == turn) for place, (name, array) in enumerate(found.items())}


def test_a_golden_call_allows_what_another_processor_may_round() -> None:
    traced, checked, run = _tiny()
    golden = golden_vectors(traced.ports, check(checked, run, _tiny_draws()), where="golden")
    for name, wanted in golden.expected.items():
        assert 0 < golden.allowed[name] < 1e-3 * np.abs(wanted).max() + 1e-5
    assert golden.allowed.keys() == golden.expected.keys()
