"""Which runner an agent gets from its settings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from _graphs import bundle
from _pte import executorch_bundle
from _runner_library import library_folder

from device_agent import config
from device_agent.config import RuntimeSettings
from device_agent.runners import choice, official
from device_agent.runners.choice import choose
from device_agent.runners.executorch import ExecutorchRunner
from device_agent.runners.official import OfficialRunner
from device_agent.runners.onnx import OnnxRunner
from device_agent.work import Workshop
from edgepfl.errors import ConfigError

TOML = """
device = "pi-07"
fleet = "watches"
[broker]
url = "mqtt://broker.example"
[data]
source = "watch:load"
[runtime]
kind = "executorch"
library = "runner"
"""


def test_onnx_is_what_an_agent_runs_unless_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "Library", None)  # it is not even looked for
    found = choose(RuntimeSettings(threads=2))
    assert found.runtime == "onnx"
    assert found.version.startswith("onnxruntime 1.")
    assert isinstance(found.runner(bundle()), OnnxRunner)


def test_the_library_is_named_in_the_settings(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "runner").symlink_to(library_folder())
    settings = config.load(tmp_path / "agent.toml").runtime
    assert settings.library == str(tmp_path / "runner")
    found = choose(settings)
    assert found.version.startswith("executorch 1.")
    assert isinstance(found.runner(executorch_bundle()), ExecutorchRunner)
    assert Workshop(found.runner, runtime=found.runtime).runtime == "executorch"


def test_the_library_is_found_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPFL_RUNNER", str(library_folder()))
    found = choose(RuntimeSettings(kind="executorch"))
    assert found.runtime == "executorch"
    assert isinstance(found.runner(executorch_bundle()), ExecutorchRunner)


def test_a_named_library_that_is_not_there_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        choose(RuntimeSettings(kind="executorch", library=str(tmp_path)))
    assert str(tmp_path) in caught.value.where


def test_without_the_library_executorchs_own_runtime_serves_and_says_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EDGEPFL_RUNNER", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        found = choose(RuntimeSettings(kind="executorch"))
    assert "350 MiB" in caplog.text
    assert "edgepfl build-runner" in caplog.text
    assert isinstance(found.runner(executorch_bundle()), OfficialRunner)
    assert found.version.startswith("executorch's Python runtime 1.")


def test_without_either_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPFL_RUNNER", str(tmp_path))
    monkeypatch.setattr(official, "installed", lambda: False)
    with pytest.raises(ConfigError, match="no ExecuTorch library") as caught:
        choose(RuntimeSettings(kind="executorch"))
    assert "edgepfl build-runner" in caught.value.remedy
