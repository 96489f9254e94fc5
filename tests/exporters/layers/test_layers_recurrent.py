from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from _layer_check import RUNTIMES, Call, Case, case, decomposed, exported, on
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from edgepfl.errors import ExportError
from exporters.layers import Layers
from exporters.recurrent import STEP_LIMIT

KINDS = ("GRU", "LSTM", "RNN")


def _recurrent(kind: str, **settings: Any) -> Case:  # noqa: ANN401  whatever the layer takes
    name = ",".join(f"{key}={value}" for key, value in settings.items())
    shape = (2, 5, 4) if settings.get("batch_first") else (5, 2, 4)
    return case(f"{kind}({name})", lambda: getattr(nn, kind)(4, 3, **settings), shape)


def _started(kind: str) -> Case:
    def run(layer: nn.Module, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:  # noqa: ANN401  tensors in tuples
        return layer(x, (h, c) if kind == "LSTM" else h + c)

    return case(
        f"{kind} from given states",
        lambda: Call(run, getattr(nn, kind)(4, 3, num_layers=2)),
        *[(5, 2, 4), (2, 2, 3), (2, 2, 3)],
    )


CASES = [
    *(_recurrent(kind, batch_first=first) for kind in KINDS for first in (False, True)),
    *(_recurrent(kind, num_layers=2, bidirectional=True) for kind in KINDS),
    *(_recurrent(kind, bias=False) for kind in KINDS),
    _recurrent("RNN", nonlinearity="relu", num_layers=2),
    _recurrent("LSTM", proj_size=2),
    *(_started(kind) for kind in KINDS),
    *(case(f"{kind}Cell", partial(getattr(nn, f"{kind}Cell"), 4, 3), (2, 4)) for kind in KINDS),
    case("GRU of one step", lambda: nn.GRU(4, 3), (1, 2, 4)),
    case("LSTM without a batch", lambda: nn.LSTM(4, 3), (5, 4)),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # torch's own, of the reference
@pytest.mark.parametrize("layer", CASES, ids=str)
def test_recurrent_layers_are_torchs(layer: Case) -> None:
    assert decomposed(layer) > 40


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_recurrent_layers_on_a_runtime(runtime: str) -> None:
    layers = [
        _recurrent("GRU", bidirectional=True, batch_first=True),
        _recurrent("LSTM"),
        _recurrent("RNN"),
        _started("LSTM"),
        case("GRUCell", lambda: nn.GRUCell(4, 3), (2, 4)),
        case("LSTMCell", lambda: nn.LSTMCell(4, 3), (2, 4)),
    ]
    assert exported(on(runtime, layers), runtime) > 500


@pytest.mark.parametrize(("kind", "most"), [("GRU", 33), ("LSTM", 39), ("RNN", 13)])
def test_a_time_step_adds_few_operators(kind: str, most: int) -> None:
    layer = getattr(nn, kind)(4, 3)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.func.grad(lambda z: layer(z)[0].sum())(x)
        return found

    counts = []
    for steps in (4, 6):
        with Layers():
            graph = make_fx(gradient)(torch.zeros(steps, 2, 4)).graph
        graph.eliminate_dead_code()
        counts.append(len(graph.nodes))
    assert 0 < (counts[1] - counts[0]) / 2 <= most


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_gradient_is_torchs(kind: str) -> None:
    layer = getattr(nn, kind)(3, 2).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def sharpness(z: torch.Tensor) -> torch.Tensor:
        slope: torch.Tensor = torch.func.grad(lambda y: (layer(y)[0] ** 2).sum())(z)
        return slope.square().sum()

    wanted = torch.func.grad(sharpness)(x)
    with Layers():
        found = torch.func.grad(sharpness)(x)
    torch.testing.assert_close(found, wanted)
    assert wanted.abs().max() > 0


def test_more_steps_than_are_sensible_are_refused_with_what_to_do() -> None:
    layer = nn.GRU(4, 3)
    with pytest.raises(ExportError, match="time steps") as caught, Layers():
        layer(torch.zeros(STEP_LIMIT + 1, 2, 4))
    assert "Conv1d" in caught.value.remedy


def test_packed_sequences_and_dropout_between_layers_are_refused() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.zeros(3, 4), torch.zeros(2, 4)])
    with pytest.raises(ExportError, match="packed"), Layers():
        nn.LSTM(4, 3)(packed)
    with pytest.raises(ExportError, match="dropout between") as caught, Layers():
        nn.GRU(4, 3, num_layers=2, dropout=0.5)(torch.zeros(2, 1, 4))
    assert caught.value.where == "torch.gru"
