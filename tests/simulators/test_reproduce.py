"""The command that reproduces published experiments, on stand-in data."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from _inputs import only

from device_agent.data import Examples
from edgepfl import presets
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.presets import Preset
from edgepfl.tree import Tree
from simulators import reproduce
from simulators.datasets import FleetData
from simulators.federation import InProcess
from simulators.reproduce import EXPERIMENTS, Accuracies, Outcome, Task, main, table

PRESET = "pfedme/mnist-mclr-global"
TINY = dataclasses.replace(
    EXPERIMENTS["pfedme/mnist-mclr"],
    about="tiny",
    data="digits",
    presets=(PRESET,),
    options={"classes": 2},
    published={(PRESET, "global"): 0.5},
    source="nowhere",
)


make = reproduce._prepared


@cache
def prepared() -> tuple[Preset, Bundle, FleetData]:
    """What takes seconds to make, made once."""
    return make(TINY, PRESET)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "tiny", TINY)
    monkeypatch.setattr(reproduce, "_prepared", lambda each, name: prepared() if each is TINY else make(each, name))


def federation(seed: int = 0) -> InProcess:
    return reproduce._federation(TINY, *prepared(), seed)


def right(model: Tree, examples: Examples) -> int:
    """Test examples that softmax regression gets right."""
    logits = only(examples.test_x) @ model["head.weight"].T + model["head.bias"]
    return int((logits.argmax(1) == examples.test_y).sum())


def test_three_rounds_through_the_graphs() -> None:
    seen: dict[str, list[tuple[int, Accuracies]]] = {}
    task = Task("tiny", seeds=(0, 1), rounds=3, every=2)
    outcomes = reproduce.reproduce(task, lambda title: lambda *each: seen.setdefault(title, []).append(each))
    assert [(each.preset, each.seed, each.rounds) for each in outcomes] == [(PRESET, 0, 3), (PRESET, 1, 3)]
    for each in outcomes:
        assert set(each.accuracy) == {"personal", "global", "local"}
        assert all(0 < accuracy <= 1 for accuracy in each.accuracy.values())
        assert each.accuracy["personal"] > each.accuracy["global"]  # two digits a device
    assert outcomes[0].accuracy != outcomes[1].accuracy
    assert list(seen) == [f"{PRESET}, seed 0: round", f"{PRESET}, seed 1: round"]
    assert [(number, len(found)) for number, found in seen[f"{PRESET}, seed 0: round"]] == [(2, 3), (3, 0)]


def test_a_look_on_the_way_changes_nothing() -> None:
    often, once = federation(5), federation(5)
    reproduce.train(often, 2, 5, 1, lambda *_: None)
    reproduce.train(once, 2, 5, 0, lambda *_: None)
    assert all(np.array_equal(often.state["w"][name], once.state["w"][name]) for name in once.state["w"])
    before, kept = often.server, dict(often.kept)
    assert reproduce.accuracies(often) == reproduce.accuracies(once)
    assert often.server is before
    assert often.kept == kept


def test_only_the_drawn_devices_compute() -> None:
    fleet = federation()
    reproduce.train(fleet, 1, 5, 0, lambda *_: None)
    assert len(fleet.kept) == 5
    reproduce.train(fleet, 1, 20, 0, lambda *_: None)
    assert set(fleet.kept) == set(fleet.devices)
    assert len(fleet.history) == 2


def test_each_example_counts_the_same_and_each_device_trains_from_the_servers_model() -> None:
    """By hand, for softmax regression."""
    fleet = federation()
    reproduce.train(fleet, 2, 5, 0, lambda *_: None)
    counted, tested = np.zeros(3), 0
    for device, examples in fleet.devices.items():
        trained = fleet.train(device)
        models = (fleet.state["w"], trained.keep["local"], trained.keep["theta"])
        counted += [right(model, examples) for model in models]
        tested += len(examples.test_y)
        moved = {name: fleet.state["w"][name] + step for name, step in trained.upload["delta"].items()}
        assert all(np.allclose(moved[name], value, atol=1e-6) for name, value in trained.keep["local"].items())
    found = reproduce.accuracies(fleet)
    assert tested > 800
    assert [found[name] for name in ("global", "local", "personal")] == pytest.approx((counted / tested).tolist())


def test_the_seed_decides_the_first_model_and_the_preset_the_rest() -> None:
    one, same, other = (federation(seed).state["w"]["head.weight"] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    fleet = federation()
    preset = presets.load(PRESET)
    assert (fleet.setting.steps, fleet.plan.batch.size, len(fleet.devices)) == (10, 20, 20)
    assert {name: getattr(fleet.algorithm, name) for name in preset.hyper} == preset.hyper
    assert fleet.plan.inner_steps == 5


def test_the_table_has_ours_next_to_the_published() -> None:
    published = EXPERIMENTS["pfedme/mnist-mclr"]
    accuracy = {"global": 0.93, "local": 0.94, "personal": 0.95}
    better = {name: value + 0.01 for name, value in accuracy.items()}
    outcomes = [
        Outcome(preset, seed, 800, each) for preset in published.presets for seed, each in enumerate((accuracy, better))
    ]
    head, rows = table(published, outcomes)
    assert head == ("preset", "model", "published", "ours", "difference")
    assert rows[0] == (PRESET, "w (GM)", "0.9286", "0.9350 \u00b1 0.0071", "+0.0064")
    assert rows[4] == ("pfedme/mnist-mclr", 'w_k,R ("personalized")', "0.9454", "0.9450 \u00b1 0.0071", "-0.0004")
    assert rows[5] == ("pfedme/mnist-mclr", "theta_k (PM)", "", "0.9550 \u00b1 0.0071", "")
    assert table(published, outcomes[::2])[1][0][3] == "0.9300"


def test_the_command_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = {kind: tmp_path / f"found.{kind}" for kind in ("json", "markdown")}
    words = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert main(["tiny", "--rounds", "1", "--every", "1", "--seed", "4", "--seeds", "1", *words]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[2].startswith(PRESET)
    assert captured.err.startswith(f"{PRESET}, seed 4: round 1, personal 0.")
    told = json.loads(files["json"].read_text())
    assert set(told) == {"experiment", "source", "published", "runs"}
    assert told["published"] == [{"preset": PRESET, "model": "global", "accuracy": 0.5}]
    ((run),) = told["runs"]
    assert (run["preset"], run["seed"], run["rounds"], set(run)) == (
        PRESET,
        4,
        1,
        {"preset", "seed", "rounds", "accuracy"},
    )
    first, _, *rows = files["markdown"].read_text().splitlines()
    assert first == "| preset | model | published | ours | difference |"
    assert f"{run['accuracy']['global']:.4f}" in rows[0]


def test_what_can_be_reproduced_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told and each.about in told for name, each in EXPERIMENTS.items())
    for each in EXPERIMENTS.values():
        assert set(each.presets) <= presets.every().keys()
        assert {preset for preset, _ in each.published} <= set(each.presets)
        assert {model for _, model in each.published} <= set(each.models)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no experiment 'fedavg/imagenet'") as caught:
        main(["fedavg/imagenet"])
    assert "pfedme/mnist-mclr" in caught.value.remedy
    for words in (["--rounds", "-1"], ["--seeds", "0"], ["--every", "-2"]):
        with pytest.raises(ConfigError, match="rounds, evaluated every"):
            main(["tiny", *words])
    monkeypatch.setitem(EXPERIMENTS, "vague", dataclasses.replace(TINY, presets=("pfedmac/fl-sim",)))
    with pytest.raises(ConfigError, match="does not say how long"):
        main(["vague"])


def test_it_takes_a_name_or_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["tiny", "--list"]):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
