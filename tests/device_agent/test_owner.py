"""A device's owner opens what he is given with nothing of ours."""

from __future__ import annotations

import json
import stat
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from device_agent.cli import agent
from device_agent.messages import inline
from device_agent.place import Place
from edgepfl import codec, wire
from edgepfl.errors import ConfigError, StoreError
from edgepfl.plan import MODEL
from edgepfl.tree import Tree
from edgepfl.wire import Report

UPLOAD = b"an update"


def weights(slot: str, value: float) -> bytes:
    return codec.encode({slot: Tree({"head.bias": np.full(3, value, np.float32)})})


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A device that has settled round 0 of run-1, whose report of round 1 waits; and a run that has only begun."""
    (tmp_path / "agent.toml").write_text(
        'device = "pi-07"\nfleet = "f"\n[broker]\nurl = "mqtt://127.0.0.1"\nusername = "u"\npassword_file = "hush"\n'
        '[data]\nsource = "data.npz"\n',
        "utf-8",
    )
    (tmp_path / "hush").write_text("a secret word", "utf-8")
    np.savez(tmp_path / "data.npz", train_x=np.eye(4, dtype=np.float32), train_y=np.arange(4))
    report = Report("pi-07", 1, "run-1", 1, 0, 4, 2, inline(UPLOAD), {"loss": 0.5}, {"train": 1.0}, "0" * 64)
    with Place.open(tmp_path / "state").store as store:
        store.commit_pending("run-1", 0, 0, keep=weights("own", 1.0), report=b"", serving=weights(MODEL, 2.0))
        store.close_round("run-1", 0, accepted=True)
        store.commit_pending("run-1", 1, 0, keep=weights("own", 3.0), report=wire.encode(report))
        store.commit_pending("run-2", 0, 0, keep=b"", report=b"of another version")
    return ["export", "--config", str(tmp_path / "agent.toml")]


def test_everything_is_there_and_opens_without_us(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert agent([*command, str(folder)]) == 0
    about = json.loads((folder / "about.json").read_text("utf-8"))
    assert (about["format"], about["device"], about["fleet"]) == (1, "pi-07", "f")
    assert about["runs"] == {
        "run-1": {"settled_round": 0, "folder": "runs/run-1"},
        "run-2": {"settled_round": None, "folder": "runs/run-2"},
    }
    run = folder / "runs" / "run-1"
    assert safetensors.numpy.load_file(run / "model.safetensors")["head.bias"].tolist() == [2.0] * 3
    assert safetensors.numpy.load_file(run / "personal.safetensors")["own/head.bias"].tolist() == [1.0] * 3
    report = json.loads((run / "report.json").read_text("utf-8"))
    assert report["update"] == {"bytes": len(UPLOAD), "sha256": sha256(UPLOAD).hexdigest()}
    assert (report["round"], report["metrics"]) == (1, {"loss": 0.5})
    other = json.loads((folder / "runs" / "run-2" / "report.json").read_text("utf-8"))
    assert other["bytes"] == len(b"of another version")
    with np.load(folder / "data.npz") as data:
        assert data["train_x"].tolist() == np.eye(4).tolist()
        assert about["data"]["arrays"].keys() == set(data.files)
    assert about["data"]["arrays"]["train_x"] == {"shape": [4, 4], "dtype": "float32"}


def test_each_file_is_listed_closed_to_others_and_free_of_secrets(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    agent([*command, str(folder)])
    listed = json.loads((folder / "about.json").read_text("utf-8"))["files"]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found.keys() == listed.keys() | {"README.md", "about.json"}
    assert {name: sha256(found[name]).hexdigest() for name in listed} == {n: f["sha256"] for n, f in listed.items()}
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (folder, *folder.rglob("*")))
    assert not any(b"hush" in data or b"a secret word" in data for data in found.values())


def test_it_is_read_beside_a_running_agent_and_never_overwrites(command: list[str], tmp_path: Path) -> None:
    with Place.open(tmp_path / "state").store:
        agent([*command, str(tmp_path / "mine")])
    with pytest.raises(ConfigError, match="there already"):
        agent([*command, str(tmp_path / "mine")])


@pytest.mark.parametrize("run", ["../../../out", "/tmp/out", "..", ".", "a/b", "a\n", "", "a\0"])  # noqa: S108  not made
def test_a_runs_name_does_not_lead_out_of_the_folder(run: str, command: list[str], tmp_path: Path) -> None:
    with Place.open(tmp_path / "state").store as store:
        store.commit_pending(run, 0, 0, keep=b"", report=b"a report")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    before |= {tmp_path / "state" / f"store.db-{kind}" for kind in ("wal", "shm")}  # SQLite's, whoever reads
    agent([*command, str(tmp_path / "mine")])
    folder = json.loads((tmp_path / "mine" / "about.json").read_text("utf-8"))["runs"][run]["folder"]
    assert folder == f"runs/{sha256(run.encode()).hexdigest()}"
    assert (tmp_path / "mine" / folder / "report.json").is_file()
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert all(path.is_relative_to(tmp_path / "mine") and ".." not in path.parts for path in new)


def test_a_device_that_never_ran_is_told(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "state" / "store.db").unlink()
    with pytest.raises(StoreError, match="there is no store"):
        agent([*command, str(tmp_path / "mine")])
    assert not (tmp_path / "mine").exists()
