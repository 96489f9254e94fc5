from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from device_agent.cli import model
from device_agent.models import newest
from device_agent.store import Store
from edgepfl import codec
from edgepfl.errors import StoreError
from edgepfl.plan import MODEL
from edgepfl.tree import Tree


def weights(value: float) -> bytes:
    return codec.encode({MODEL: Tree({"head.bias": np.full(3, value, np.float32)})})


def test_the_newest_runs_model_is_read_beside_a_running_agent(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as store:
        store.set_serving("first", 3, weights(1.0))
        store.set_serving("second", 2, weights(2.0))
        found = newest(tmp_path / "store.db")
        assert (found.run, found.round) == ("second", 2)
        tensors = safetensors.numpy.load(found.data)
        assert list(tensors) == ["head.bias"]
        assert tensors["head.bias"].tolist() == [2.0, 2.0, 2.0]


def test_before_any_run_ends_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store") as missing:
        newest(tmp_path / "store.db")
    assert "Run the agent" in missing.value.remedy
    with Store(tmp_path / "store.db"), pytest.raises(StoreError, match="no run has come to its end"):
        newest(tmp_path / "store.db")


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database, and long enough to be looked at as one")
    with pytest.raises(StoreError, match="cannot be read") as caught:
        newest(tmp_path / "store.db")
    assert str(tmp_path) in caught.value.where


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        'device = "pi-07"\nfleet = "f"\n[broker]\nurl = "mqtt://127.0.0.1"\n[data]\nsource = "data.npz"\n', "utf-8"
    )
    (tmp_path / "state").mkdir()
    with Store(tmp_path / "state" / "store.db") as store:
        store.set_serving("run-1", 5, weights(0.5))
    out = tmp_path / "model.safetensors"
    assert model(["--config", str(config), "-o", str(out)]) == 0
    assert safetensors.numpy.load_file(out)["head.bias"].tolist() == [0.5, 0.5, 0.5]
    assert "the model of run run-1" in capsys.readouterr().out
