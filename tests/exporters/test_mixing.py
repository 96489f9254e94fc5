"""A layer that mixes the examples of a minibatch would learn from padding: it is refused, whichever graph it is in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from _models import draws_of, fedavg, reference_of
from torch import Tensor, nn

from edgepfl.errors import ExportError
from edgepfl.plan import Entry, ExampleSpec
from exporters.binding import Binding
from exporters.check import Arrays, Checked, check
from exporters.draws import Padding
from exporters.entries import entry_functions
from exporters.graph import trace
from exporters.model import Model, model_of, seeded


class _With(nn.Module):
    """Something between two linear layers."""

    def __init__(self, between: Callable[[_With, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.head = nn.Linear(6, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, self.body(x)))  # type: ignore[no-any-return]  # torch's untyped call


def _model(between: Callable[[_With, Tensor], Tensor], batch: int = 4) -> Model:
    return model_of(seeded(lambda: _With(between), 0), [(5,)], batch=batch)


def _check(model: Model, entry: Entry) -> bytes:
    """The graph run by the reference itself, which is right: only the model may be wrong."""
    binding = Binding(fedavg(), model)
    function = entry_functions(binding)[entry]
    reference = reference_of(binding)

    def run(feeds: Arrays) -> Arrays:
        return {name: array.astype(np.float32) for name, array in reference.run(entry, feeds).items()}

    ports = trace(function).ports
    return check(Checked(entry, ports, lambda feeds: reference.run(entry, feeds)), run, draws_of(binding))


MIXING: dict[str, Callable[[_With, Tensor], Tensor]] = {
    "centred": lambda _, h: h - h.mean(0),
    "shifted": lambda _, h: h.roll(1, 0),
    "attends": lambda _, h: torch.softmax(h @ h.T, -1) @ h,
    "time first": lambda _, h: nn.functional.avg_pool1d(h.T.unsqueeze(0), 3, 1, 1)[0].T,
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("entry", [Entry.STEP, Entry.EVALUATE, Entry.PREDICT])
@pytest.mark.parametrize("batch", [2, 4])
def test_a_layer_that_mixes_is_refused_in_every_graph(name: str, entry: Entry, batch: int) -> None:
    with pytest.raises(ExportError, match="mixes the examples") as caught:
        _check(_model(MIXING[name], batch), entry)
    assert caught.value.where == f"graph {entry}"
    assert "batch normalisation may" in caught.value.remedy


@pytest.mark.parametrize("entry", [Entry.STEP, Entry.EVALUATE, Entry.PREDICT])
def test_a_layer_that_mixes_only_in_one_mode_is_refused_there(entry: Entry) -> None:
    training = entry is Entry.STEP
    between = MIXING["centred"]
    with pytest.raises(ExportError, match="mixes the examples"):
        _check(_model(lambda module, h: between(module, h) if module.training is training else h), entry)
    assert _check(_model(lambda module, h: between(module, h) if module.training is not training else h), entry)


@pytest.mark.parametrize("entry", [Entry.STEP, Entry.EVALUATE, Entry.PREDICT])
def test_batch_normalisation_mixes_and_is_admitted(entry: Entry) -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), 0)
    assert _check(model_of(module, [(5,)], batch=4), entry)
    assert _check(_model(lambda _, h: h - h.mean(1, keepdim=True)), entry)


@pytest.mark.parametrize("entry", [Entry.STEP, Entry.EVALUATE])
def test_a_loss_that_mixes_the_targets_alone_is_refused(entry: Entry) -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return ((outputs - y) ** 2).mean(1) / (1 + y.var())

    model = model_of(nn.Linear(5, 3), [(5,)], loss=loss, target=ExampleSpec((3,)), batch=4)
    with pytest.raises(ExportError, match="mixes the examples") as caught:
        _check(model, entry)
    assert caught.value.where == f"graph {entry}"


class _TimeMajor(nn.Module):
    """Folds time into the minibatch the other way round, so that its rows are not those of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn(x.transpose(0, 1).reshape(-1, 5)).reshape(x.shape[1], -1, 5)
        return self.head(h.mean(0))  # type: ignore[no-any-return]  # torch's untyped call


def test_batch_normalisation_of_rows_in_another_order_is_refused() -> None:
    with pytest.raises(ExportError, match="mixes the examples") as caught:
        _check(model_of(_TimeMajor(), [(3, 5)], batch=4), Entry.STEP)
    assert caught.value.where == "graph step"


@pytest.mark.parametrize(("size", "real"), [(1, 1), (2, 1), (3, 2), (4, 3), (16, 11)])
def test_there_is_padding_to_look_at_wherever_there_can_be(size: int, real: int) -> None:
    module = nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(6, 3))
    binding = Binding(fedavg(), model_of(module, [ExampleSpec((3,), "int64")], batch=size))
    feeds = draws_of(binding).feeds(binding.batch_ports, Padding.SOME)
    kept, other = draws_of(binding, seed=6).other_padding(feeds)
    assert kept == int(feeds["batch:weight"].sum()) == real
    np.testing.assert_array_equal(other["batch:x0"][:real], feeds["batch:x0"][:real])
    assert size == real or not np.array_equal(other["batch:x0"], feeds["batch:x0"])
    assert 0 <= other["batch:x0"].min() <= other["batch:x0"].max() < 7
