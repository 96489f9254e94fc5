from __future__ import annotations

import json
from pathlib import Path

import msgspec
import onnx
import pytest
from _models import fedavg, tiny_cnn

from edgepfl.bundle import Bundle, pack
from edgepfl.errors import BundleError, ConfigError
from edgepfl.plan import Entry
from exporters.build import build
from exporters.inspection import main, reports


@pytest.fixture(scope="module")
def made() -> Bundle:
    return build(fedavg(), tiny_cnn(()), runtimes=("onnx", "executorch"))


@pytest.fixture(scope="module")
def file(made: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "tiny.bundle"
    path.write_bytes(pack(made))
    return path


def test_every_graph_is_reported_with_what_runs_where(made: Bundle) -> None:
    found = {(each.runtime, each.graph): each for each in reports(made)}
    assert found.keys() == {(runtime, entry) for runtime in made.graphs for entry in made.plan.graphs}
    step = found["onnx", "step"]
    nodes = onnx.load_from_string(made.graphs["onnx"][Entry.STEP]).graph.node
    assert (step.bytes, step.count("cpu")) == (len(made.graphs["onnx"][Entry.STEP]), len(nodes))
    assert step.delegates is None
    lowered = found["executorch", "step"]
    assert lowered.delegates == 1  # the whole step is one piece, which is what makes it fast
    assert lowered.count("xnnpack") > 10 * lowered.count("portable")


def test_the_command_tells_people_and_programs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(file), "--operators"]) == 0
    told = capsys.readouterr().out
    assert "fedavg on tiny: float32[2, 9] -> int64[], minibatches of 4" in told
    assert "executorch step on xnnpack:" in told
    assert main([str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["slots"]["w"] == {"role": "down", "bytes": 4 * 47}
    assert len(found["graphs"]) == 2 * (len(Entry) - 2)  # neither prepare nor inner


def test_what_is_no_graph_is_told_by_its_place(made: Bundle) -> None:
    for runtime in made.graphs:
        broken = {**made.graphs[runtime], Entry.STEP: b"nonsense"}
        other = msgspec.structs.replace(made, graphs={runtime: broken})
        with pytest.raises(BundleError, match="not an") as caught:
            reports(other)
        assert caught.value.where == f"{runtime} graph step"


def test_a_file_that_is_not_there_or_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        main([str(tmp_path / "none")])
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BundleError, match="not a bundle"):
        main([str(tmp_path / "text")])
