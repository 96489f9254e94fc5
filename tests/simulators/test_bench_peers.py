"""The comparison with other systems: ours run here; peers are installed only where somebody asks for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from simulators.bench import cli, peers, peers_ours, peers_text
from simulators.bench.peer_programs import common
from simulators.bench.peer_programs.common import Job, Net
from simulators.bench.peers_environment import Environment

JOB = Job(devices=3, inputs=6, hidden=5, classes=3, batch=4, steps=2, rounds=3)


def prepared(folder: Path) -> Path:
    peers.prepare(JOB, folder, {name: x.numpy() for name, x in peers_ours.model_of(JOB).parameters.items()})
    return folder


def by_hand(folder: Path) -> dict[str, np.ndarray]:
    """FedAvg as the peers' programs do it, without a peer."""
    x, y = common.data_in(folder)
    model = common.first_in(folder)
    for _ in range(JOB.rounds):
        found = []
        for device in range(JOB.devices):
            net = Net(JOB)
            net.load_state_dict(model)
            common.train(net, x[device], y[device], JOB)
            found.append(net.state_dict())
        model = {name: torch.stack([each[name] for each in found]).mean(0) for name in model}
    return {name: tensor.numpy() for name, tensor in model.items()}


def test_the_job_is_done_as_the_peers_do_it(tmp_path: Path) -> None:
    said: list[str] = []
    rows = peers.run(["vmapped"], prepared(tmp_path), said.append)  # agents, the same way: edgepfl bench peers
    assert [row.failure for row in rows] == [""], said
    assert all(row.right and len(row.seconds) == JOB.rounds - 1 for row in rows)
    with np.load(tmp_path / "vmapped.npz") as model:
        found = {name: model[name] for name in model.files}
    expected = by_hand(tmp_path)
    assert peers._apart(found, expected) < peers.TOLERANCE
    assert peers._apart(found, {name: tensor.numpy() for name, tensor in common.first_in(tmp_path).items()}) > 0.01
    assert "edgepfl simulate" in peers_text.text(JOB, rows)


def test_a_peer_that_cannot_be_had_ends_no_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flower = replace(peers.CONTESTANTS["flower"], environment=Environment(("flwr",), (99,)))
    monkeypatch.setattr(peers, "CONTESTANTS", MappingProxyType({**peers.CONTESTANTS, "flower": flower}))
    monkeypatch.setenv("EDGEPFL_CACHE", str(tmp_path / "cache"))
    file, page = tmp_path / "rows.json", tmp_path / "rows.md"
    words = ["peers", "--only", "flower,vmapped", "--devices", "2", "--rounds", "1", "--batch", "4"]
    assert cli.main([*words, "--json", str(file), "--markdown", str(page)]) == 1
    failed, ours = json.loads(file.read_text())["rows"]
    assert "3.99" in failed["failure"]
    assert ours["right"]
    assert ours["device_rounds_per_second"] > 0
    assert "FAILED" in capsys.readouterr().out
    assert page.read_text().startswith("| system |")


def test_models_that_differ_are_not_right() -> None:
    one = {"w": np.array([1.0, 2.0], np.float32)}
    assert peers._apart(one, one) == 0
    assert peers._apart({"w": np.array([1.0, 2.1], np.float32)}, one) == pytest.approx(0.05, rel=1e-3)
    assert peers._apart({"v": one["w"]}, one) == float("inf")
    assert not peers.Row("flower", apart=2 * peers.TOLERANCE).right
