"""Simulations on disk: nothing is lost by a kill, and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from device_agent.data import Examples
from edgepfl import algorithms
from edgepfl.errors import ConfigError, EdgepflError, ExportError, GraphFailed, StoreError
from edgepfl.plan import SlotPlan, TensorSpec
from edgepfl.tree import Tree
from exporters import zoo
from exporters.model import Model, model_of
from simulators.datasets import OnDemand
from simulators.federation import Setting, named
from simulators.vmapped import Vectorised, command, kept
from simulators.vmapped.folder import Folder

ROUNDS, COHORT = 4, 5


def examples(number: int) -> Examples:
    rng = np.random.default_rng(number)
    return Examples(rng.standard_normal((9, 4), np.float32), rng.integers(0, 3, 9), np.zeros((0, 4)), np.zeros(0, int))


def fleet(devices: int = 12, make: Callable[[int], Examples] = examples) -> OnDemand:
    return OnDemand([f"device-{number:02}" for number in range(devices)], make)


def model(seed: int = 0) -> Model:
    return zoo.mlp(inputs=4, hidden=3, classes=3, batch=4, seed=seed)


def opened(folder: Path | None, devices: OnDemand | None = None, *, seed: int = 3, steps: int = 2) -> Vectorised:
    algorithm, setting = algorithms.build("ditto", {}), Setting(steps=steps, seed=seed)
    return Vectorised(algorithm, model(), devices or fleet(), setting, chunk=2, folder=folder)


def trained(run: Vectorised, rounds: int = ROUNDS) -> Vectorised:
    while run.number < rounds:
        run.round(run.choose(COHORT))
    return run


def everything(run: Vectorised) -> dict[str, np.ndarray]:
    values = named("server", run.state)
    for device in run.names:
        values |= named(device, run.kept(device) or {})
    return values


def same(one: Vectorised, other: Vectorised) -> bool:
    first, second = everything(one), everything(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def whole() -> Vectorised:
    return trained(opened(None))


def test_a_run_on_disk_has_the_bits_of_one_in_memory(tmp_path: Path, whole: Vectorised) -> None:
    run = trained(opened(tmp_path))
    assert same(run, whole)
    assert any(run.kept(device) is None for device in run.names)  # so a device that never took part was compared, too


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path, whole: Vectorised) -> None:
    trained(opened(tmp_path), 2).close()
    run = opened(tmp_path)
    assert run.number == 2
    assert same(trained(run), whole)
    assert run.folder is not None
    assert [row.number for row in run.folder.rows()] == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["commit", "_put", "discard"])
def test_an_end_at_any_place_of_a_round_loses_nothing(
    place: str, tmp_path: Path, whole: Vectorised, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(opened(tmp_path), 2)
    left = 2 if place == "_put" else 1  # of a round's files the first was put in place

    def ends(owner: type, method: str) -> None:
        real = getattr(owner, method)
        calls = iter(range(left))

        def ended(*args: object, **words: object) -> object:
            if next(calls, None) in (left - 1, None):
                raise KeyboardInterrupt
            return real(*args, **words)

        monkeypatch.setattr(owner, method, ended)

    ends(Folder if place == "commit" else kept.OnDisk, "commit" if place == "commit" else place)
    if place == "discard":  # the one of the commit, not that of the round's beginning
        monkeypatch.undo()
        real = kept.OnDisk.discard
        monkeypatch.setattr(
            kept.OnDisk, "discard", lambda self: _interrupt() if any(self._pending.iterdir()) else real(self)
        )
    with pytest.raises(KeyboardInterrupt):
        run.round(run.choose(COHORT))
    monkeypatch.undo()
    run.close()
    again = opened(tmp_path)
    assert again.number == (2 if place == "commit" else 3)
    assert same(trained(again), whole)


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_round_that_fails_leaves_no_trace(tmp_path: Path, whole: Vectorised) -> None:
    broken = [True]

    def sometimes(number: int) -> Examples:
        found = examples(number)
        return (
            Examples(np.asarray(found.train_x) * 1e30, found.train_y, found.test_x, found.test_y)
            if broken[0]
            else found
        )

    run = opened(tmp_path, fleet(make=sometimes))
    with pytest.raises(GraphFailed, match="device-"):
        trained(run)
    assert run.number == 0
    run.close()
    broken[0] = False
    assert same(trained(opened(tmp_path)), whole)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import test_vmapped_run as here
run = here.trained(here.opened(Path(sys.argv[1])), 2)
real = here.kept.OnDisk._put
here.kept.OnDisk._put = lambda self, found: (real(self, found), os.kill(os.getpid(), signal.SIGKILL))
run.round(run.choose(here.COHORT))
"""


def test_a_killed_process_loses_nothing(tmp_path: Path, whole: Vectorised) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent))
    words = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(words, check=False, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == -signal.SIGKILL
    run = opened(tmp_path)
    assert run.number == 3  # it was committed, though only a part of the personal state was in its place
    assert same(trained(run), whole)


def test_a_directory_serves_one_run(tmp_path: Path) -> None:
    run = opened(tmp_path)
    with pytest.raises(ConfigError, match="another process"):
        opened(tmp_path)
    run.close()
    others: list[Callable[[], object]] = [
        lambda: opened(tmp_path, seed=4),
        lambda: opened(tmp_path, steps=3),
        lambda: opened(tmp_path, fleet(13)),
    ]
    for other in others:
        with pytest.raises(ConfigError, match="another run"):
            other()


def test_personal_state_is_sparse_and_its_files_are_arrays(tmp_path: Path) -> None:
    slots = {"v": SlotPlan("keep", {"w": TensorSpec((1000,)), "": TensorSpec(())})}  # type: ignore[arg-type]  # a StrEnum
    store = kept.OnDisk(slots, 100_000, tmp_path)
    places = np.array([5, 99_999])
    rows = {"v": Tree({"w": np.ones((2, 1000), np.float32), "": np.full(2, 7, np.float32)})}
    store.write(1, places, rows)
    assert not store.read(places)[1].any()
    store.commit(1)
    trees, present = kept.OnDisk(slots, 100_000, tmp_path).read(np.array([4, 5, 99_999]))
    assert present.tolist() == [False, True, True]
    assert trees["v"]["w"].sum() == 2000
    file = tmp_path / "v.w.npy"
    assert np.load(file, mmap_mode="r").shape == (100_000, 1000)
    assert file.stat().st_blocks * 512 < 1 << 20 < file.stat().st_size
    with pytest.raises(StoreError, match="is wanted"):
        kept.OnDisk(slots, 100_001, tmp_path)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else self.layer(-x)  # type: ignore[no-any-return]  # torch's untyped call


def test_what_branches_on_values_is_refused() -> None:
    run = Vectorised(algorithms.build("fedavg", {}), model_of(Branches(), [(4,)], batch=4), fleet())
    with pytest.raises(ExportError, match="many devices at once") as refused:
        trained(run)
    assert "must not branch" in refused.value.remedy


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Vectorised(algorithms.build("fedavg", {}), model(), {}),
        lambda: Vectorised(algorithms.build("fedavg", {}), model(), fleet(), Setting(codec="fp16")),
        lambda: Vectorised(algorithms.build("fedavg", {}), model(), fleet(), chunk=-1),
        lambda: opened(None).round([]),
        lambda: opened(None).round(["device-01", "device-01"]),
        lambda: opened(None).round(["device-99"]),
    ],
)
def test_impossible_wishes_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()


COMMAND = ["--algorithm", "fedavg", "--devices", "30", "--cohort", "4", "--batch", "8", "--model", "mlp"]


def test_the_command_goes_on_from_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*COMMAND, "--data", "random,features=6,classes=3"]
    found = {}
    for rounds, state in ((2, "one"), (3, "one"), (3, "other")):
        file = tmp_path / f"{rounds}-{state}.json"
        options = ["--rounds", str(rounds), "--state", str(tmp_path / state), "--json", str(file), "--evaluate", "6"]
        assert command.main([*words, *options]) == 0
        found[rounds, state] = json.loads(file.read_text())
    assert found[3, "one"]["evaluation"] == found[3, "other"]["evaluation"]
    assert [row["round"] for row in found[3, "one"]["history"]] == [1, 2, 3]
    for other in (["--data", "random,features=6,classes=3,signal=9"], ["--batch", "4"]):
        with pytest.raises(ConfigError, match="another run, with other"):
            command.main([*words, "--rounds", "4", "--state", str(tmp_path / "one"), *other])
    assert "worst decile" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        "--devices 0",
        "--chunk x",
        "--device tpu",
        "--device meta",
        "--algorithm nothing",
        "--data nothing",
        "--tune-steps -1",
        "--json /nowhere/at-all/found.json",
        f"--devices 2 --state {__file__}",
    ],
)
def test_the_command_refuses_what_it_cannot_do(wrong: str) -> None:
    with pytest.raises(EdgepflError):
        command.main(["--rounds", "1", *wrong.split()])


def test_rounds_do_not_disturb_torchs_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    trained(opened(None), 1)
    assert torch.equal(torch.rand(3), expected)
