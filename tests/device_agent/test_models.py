from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from device_agent.cli import model
from device_agent.messages import inline
from device_agent.models import Held, held, newest
from device_agent.place import Place
from device_agent.store import Store
from edgepfl import codec, wire
from edgepfl.errors import ConfigError, StoreError
from edgepfl.plan import MODEL
from edgepfl.tree import Tree
from edgepfl.wire import BlobRef, Report


def weights(value: float) -> bytes:
    return codec.encode({MODEL: Tree({"head.bias": np.full(3, value, np.float32)})})


def test_the_newest_runs_model_is_read_beside_a_running_agent(tmp_path: Path) -> None:
    with Store(tmp_path / "store.db") as store:
        store.commit_pending("first", 3, 0, keep=b"", report=b"", serving=weights(1.0))
        store.commit_pending("second", 2, 0, keep=b"", report=b"", serving=weights(2.0))
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
        store.commit_pending("run-1", 5, 0, keep=b"", report=b"", serving=weights(0.5))
    out = tmp_path / "model.safetensors"
    assert model(["--config", str(config), "-o", str(out)]) == 0
    assert safetensors.numpy.load_file(out)["head.bias"].tolist() == [0.5, 0.5, 0.5]
    assert "the model of run run-1" in capsys.readouterr().out


def settings(folder: Path) -> list[str]:
    """The agent's, whose state directory exists."""
    config = folder / "agent.toml"
    config.write_text(
        'device = "pi-07"\nfleet = "f"\n[broker]\nurl = "mqtt://127.0.0.1"\n[data]\nsource = "data.npz"\n', "utf-8"
    )
    (folder / "state").mkdir()
    return ["--config", str(config)]


def fill(store: Store) -> None:
    """Two runs: one that ended, and one whose report waits."""
    store.commit_pending("old", 3, 0, keep=b"k" * 100_000, report=b"r", serving=b"m" * 100_000)
    store.settle("old", 3, 4, 0)
    store.commit_pending("new", 0, 0, keep=b"n" * 10, report=b"rr")


def test_what_is_kept_of_each_run_is_listed_beside_a_running_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = settings(tmp_path)
    with Store(tmp_path / "state" / "store.db") as store:
        fill(store)
        assert held(tmp_path / "state" / "store.db") == [
            Held("new", -1, waiting=True, serves=False, size=12),
            Held("old", 3, waiting=False, serves=True, size=200_000),
        ]
        assert model([*words, "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["new", "old"]
        assert "no settled round, a report waits, 12 bytes" in lines[0]
        assert "settled round 3, a model that predicts, 200000 bytes" in lines[1]
        assert model([*words, "--list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found[1] == {"run": "old", "settled": 3, "waiting": False, "serves": True, "size": 200_000}


def test_a_run_is_forgotten_and_leaves_nothing_in_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, state = settings(tmp_path), tmp_path / "state"
    with Store(state / "store.db") as store:
        fill(store)
        with pytest.raises(StoreError, match="another agent is using it"):
            model([*words, "--forget", "old"])
    with pytest.raises(ConfigError, match="nothing is kept of run 'odl'"):
        model([*words, "--forget", "odl"])
    assert model([*words, "--forget", "old"]) == 0
    assert "old: forgotten" in capsys.readouterr().out
    assert [each.run for each in held(state / "store.db")] == ["new"]
    everything = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert b"k" * 20 not in everything
    assert b"m" * 20 not in everything
    assert b"n" * 10 in everything


def test_a_run_is_forgotten_with_its_uploads_and_the_checkpoint(tmp_path: Path) -> None:
    words, state = settings(tmp_path), tmp_path / "state"
    place = Place.open(state)

    def wait(run: str, upload: BlobRef) -> None:
        report = wire.encode(Report("pi-07", 1, run, 1, 0, 10, 3, upload, {}, {}, "0" * 64))
        place.store.commit_pending(run, 1, 0, keep=b"", report=report)

    old, new = (place.offered.put(name * 50_000) for name in (b"o", b"n"))
    with place.store:
        wait("old", old)
        wait("new", new)
        wait("short", inline(b"s"))
    (state / "checkpoint").write_bytes(b"of a training")
    assert model([*words, "--forget", "old"]) == 0
    assert not (state / "checkpoint").exists()
    assert place.offered.whole() == {new.sha256}
    assert [each.run for each in held(state / "store.db")] == ["new", "short"]
