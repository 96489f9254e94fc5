from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from coordinator.journal import Result, RoundCost
from coordinator.status import RunStatus
from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners.onnx import OnnxRunner
from edgepfl.algorithms import parse_settings
from edgepfl.algorithms.fedavg import FedAvg
from edgepfl.bundle import Bundle
from edgepfl.bus import Traffic
from edgepfl.errors import ConfigError
from exporters.build import build
from exporters.zoo import mlp
from simulators import alone, compare, demo
from simulators.arguments import convert_config, settings_for
from simulators.demo import curve, traffic
from simulators.experiment import Kill, accuracy_of, save
from simulators.stage import Trained

HASH = "0" * 64


def _result(round_: int, device: str, **metrics: float) -> Result:
    return Result(round_, device, 10, 5, metrics, {}, HASH)


def _trained(results: tuple[Result, ...], seen: dict[int, Traffic], rounds: int) -> Trained:
    status = RunStatus("run", "done", "", rounds + 1, rounds, "", "", (), {}, HASH)
    costs = {n: RoundCost(100 * n, 10 * n, 0.5) for n in range(1, rounds + 2)}
    return Trained(status, results, MappingProxyType(costs), MappingProxyType(seen))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return build(FedAvg(), mlp(inputs=5, hidden=4, classes=3, batch=4))


@pytest.fixture(scope="module")
def devices() -> dict[str, Examples]:
    rng = np.random.default_rng(0)

    def draw(
        count: int,
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        y = rng.integers(0, 3, count)
        return (rng.normal(size=(count, 5)) + 2.0 * np.eye(5)[y]).astype(np.float32), y

    return {name: Examples(*draw(12), *draw(30)) for name in ("a", "b", "c")}


class TestArguments:
    def test_settings_are_name_value_pairs(self) -> None:
        assert parse_settings(["lam=0.5", "weighting=uniform"]) == {"lam": "0.5", "weighting": "uniform"}

    @pytest.mark.parametrize("text", ["lam", "=1", "lam=", ""])
    def test_other_texts_are_refused_with_an_example(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"Write --set lam=0\.1") as caught:
            parse_settings([text])
        assert repr(text) in str(caught.value)

    def test_every_step_size_is_the_demos_unless_told_otherwise(self) -> None:
        assert settings_for("apfl", {"alpha_lr": 0.5}) == {"lr": 0.1, "alpha_lr": 0.5}
        assert settings_for("fedavg", {}) == {"lr": 0.1, "tune_lr": 0.1}

    def test_a_hyperparameter_that_is_none_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="no hyperparameter 'lamb'"):
            settings_for("ditto", {"lamb": 1.0})

    @pytest.mark.parametrize(
        ("field", "value", "option"),
        [("rounds", 0, "rounds"), ("steps", 0, "steps"), ("goal", 0, "devices"), ("seed", -1, "seed")],
    )
    def test_impossible_numbers_are_refused_by_their_option(self, field: str, value: int, option: str) -> None:
        with pytest.raises(ConfigError, match=f"--{option}: {value} is not a whole number from"):
            convert_config(**{field: value})

    def test_minimum_above_goal_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"minimum \(3\) is above goal \(2\)"):
            convert_config(goal=2, minimum=3)


class TestKill:
    def test_names_a_process_and_a_round(self) -> None:
        assert Kill.parse("coordinator@20") == Kill("coordinator", 20)
        assert Kill.parse("agent@0") == Kill("agent", 0)

    @pytest.mark.parametrize("text", ["broker@3", "agent", "agent@", "agent@-1", "agent@x", "@3"])
    def test_refuses_anything_else(self, text: str) -> None:
        with pytest.raises(ConfigError, match="Write coordinator@5"):
            Kill.parse(text)


class TestWhatARunCameTo:
    def test_accuracies_are_those_of_one_round_and_one_model(self) -> None:
        results = (
            _result(1, "a", **{"accuracy.personal": 0.1}),
            _result(2, "a", **{"accuracy.personal": 0.5, "accuracy.global": 0.4}),
            _result(2, "b", loss=1.0),
        )
        assert accuracy_of("personal", results, 2) == {"a": 0.5}
        assert accuracy_of("global", results, 1) == {}

    def test_an_evaluation_before_a_rounds_training_is_of_the_round_before(self) -> None:
        results = (
            _result(1, "a", **{"loss": 2.0, "accuracy.personal": 0.1}),
            _result(1, "b", **{"loss": 4.0, "accuracy.personal": 0.3}),
            _result(2, "a", **{"accuracy.personal": 0.7, "accuracy.global": 0.6}),
        )
        before, after = curve(_trained(results, {}, 1), 1)
        assert (before.round, before.train_loss) == (0, None)
        assert before.personal_accuracy == pytest.approx(0.2)
        assert (after.round, after.train_loss, after.personal_accuracy, after.global_accuracy) == (1, 3.0, 0.7, 0.6)

    def test_bytes_of_agents_are_spread_over_the_rounds_between_two_looks(self) -> None:
        seen = {0: Traffic(), 1: Traffic(1000, 100), 3: Traffic(9999, 9999), 5: Traffic(5000, 900)}
        found = traffic(_trained((), seen, 5), 5, agents=2)
        assert [each.device_down for each in found] == [500, 500, 500, 500, 500]
        assert [each.device_up for each in found] == [50, 100, 100, 100, 100]
        assert [each.coordinator_in for each in found] == [100, 200, 300, 400, 500]
        assert [each.coordinator_out for each in found] == [10, 20, 30, 40, 50]


class TestAlone:
    def test_without_a_step_size_the_first_model_is_judged(self, bundle: Bundle, devices: dict[str, Examples]) -> None:
        found = alone.accuracies(bundle, devices, convert_config(rounds=2, steps=3), {"lr": 0.0})
        interpreter = Interpreter(bundle.plan, bundle.model, OnnxRunner(bundle))
        for name, examples in devices.items():
            start = Start({"w": bundle.model}, None, {}, 0)
            first = evaluate(interpreter, start, examples.fit(bundle.plan), 0)
            assert found[name] == first.metrics["accuracy.global"]

    def test_training_helps_and_does_not_depend_on_the_threads(
        self, bundle: Bundle, devices: dict[str, Examples]
    ) -> None:
        config = convert_config(rounds=20, steps=5, seed=3)
        untrained = alone.accuracies(bundle, devices, config, {"lr": 0.0})
        one = alone.accuracies(bundle, devices, config, {"lr": 0.2}, threads=1)
        assert one == alone.accuracies(bundle, devices, config, {"lr": 0.2}, threads=3)
        assert sum(one.values()) > sum(untrained.values()) + 0.3

    def test_a_device_is_not_touched_by_the_others(self, bundle: Bundle, devices: dict[str, Examples]) -> None:
        config = convert_config(rounds=5, steps=5)
        together = alone.accuracies(bundle, devices, config, {"lr": 0.2})
        assert alone.accuracies(bundle, {"b": devices["b"]}, config, {"lr": 0.2}) == {"b": together["b"]}


def test_a_saved_bundle_is_named_after_its_algorithm(bundle: Bundle, tmp_path: Path) -> None:
    path = save(bundle, tmp_path)
    assert path.name == "fedavg.bundle"
    assert path.stat().st_size > 0


class TestCommandLine:
    """What can never work is refused before anything is started."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--devices", "1"], "--devices: 1 devices. At least 2 are a fleet"),
            (["--rounds", "5", "--kill", "agent@5"], "--kill agent@5: the run ends after round 5"),
            (["--algorithm", "fedavgg"], "there is no algorithm 'fedavgg'"),
            (["--set", "lam=much"], "'much' will not do"),
        ],
    )
    def test_a_demo_that_cannot_be(self, words: list[str], message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            demo.main(words)
        assert message in str(caught.value)

    def test_a_folder_that_holds_something_is_not_written_into(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("precious", "utf-8")
        with pytest.raises(ConfigError, match="it holds something already"):
            demo.main(["--keep", str(tmp_path)])
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_a_comparison_knows_all_its_algorithms_first(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ConfigError, match="no algorithm 'nope'"):
            compare.main(["--algorithms", "fedavg, nope", "--data", "digits", "--devices", "4"])
        assert "export" not in capsys.readouterr().err
