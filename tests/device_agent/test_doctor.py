"""``edgepfl doctor``: a device that computes something else is found, and one that does not is left in peace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from _graphs import GRAPHS, bundle
from _pte import executorch_bundle
from _runner_library import library_folder
from onnx import NodeProto, TensorProto, helper

from device_agent.doctor import REPEATS, examine, main
from device_agent.runners import Array, Call
from device_agent.runners.onnx import OnnxRunner
from edgepfl.__main__ import main as edgepfl
from edgepfl.bundle import Bundle, Golden, golden_bytes, pack
from edgepfl.errors import BundleError, ConfigError
from edgepfl.plan import Entry
from edgepfl.tree import Tree

ALLOWED = 1e-4
OUTPUT = "x_next"


def feeds(entry: Entry) -> dict[str, Array]:
    source = np.random.default_rng(3)
    return {
        port.name: np.asarray(source.uniform(1, 2, port.spec.shape)).astype(port.spec.dtype)
        for port in GRAPHS[entry].inputs
    }


def checked(given: Bundle, allowed: float = ALLOWED) -> Bundle:
    """The bundle with what its graphs ought to give, as an exporter adds it."""
    reference = OnnxRunner(bundle())
    calls = {entry: (feeds(entry), reference.run(entry, feeds(entry))) for entry in GRAPHS}
    golden = {
        entry: golden_bytes(Golden(Tree(given), Tree(found), Tree(dict.fromkeys(found, np.float32(allowed)))))
        for entry, (given, found) in calls.items()
    }
    return msgspec.structs.replace(given, golden=golden)


def with_step(data: bytes) -> Bundle:
    given = checked(bundle())
    return msgspec.structs.replace(given, graphs={"onnx": {**given.graphs["onnx"], Entry.STEP: data}})


def altered(*nodes: NodeProto, **constants: float) -> bytes:
    """The step with its output, now called "right", worked over by further nodes."""
    model = onnx.load_from_string(bundle().graphs["onnx"][Entry.STEP])
    for node in model.graph.node:
        node.output[:] = ["right" if name == OUTPUT else name for name in node.output]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(_constant(name, value) for name, value in constants.items())
    data: bytes = model.SerializeToString()
    return data


def _constant(name: str, value: float) -> TensorProto:
    return helper.make_tensor(name, TensorProto.FLOAT, [], [value])


def written(given: Bundle, folder: Path) -> Path:
    path = folder / "x.bundle"
    path.write_bytes(pack(given))
    return path


def told(given: Bundle, folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["--bundle", str(written(given, folder)), "--json", *words])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, report


def test_a_device_that_computes_right_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", str(written(checked(bundle()), tmp_path))]) == 0
    about, *lines = capsys.readouterr().out.splitlines()
    assert f"onnxruntime {onnxruntime.__version__}, threads 1" in about
    assert [line.split()[:2] for line in lines] == [["ok", entry.value] for entry in sorted(GRAPHS)]
    assert all("us   error 0.000 of what is allowed" in line for line in lines)


def test_the_report_for_machines_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = told(checked(bundle()), tmp_path, capsys, "--threads", "2")
    assert (status, report["ok"], report["threads"]) == (0, True, 2)
    assert [each["graph"] for each in report["graphs"]] == sorted(GRAPHS)
    assert all(each["worst"] == 0 and each["us"] > 0 and each["failure"] == "" for each in report["graphs"])
    assert report["pss_mib"] > 10


def step_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The step's finding; all others must be good."""
    wrong = [each for each in report["graphs"] if not each["ok"]]
    assert [each["graph"] for each in wrong] == ["step"]
    assert len(report["graphs"]) == len(GRAPHS)
    return dict(wrong[0])


def test_an_output_that_is_off_by_a_hundredth_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = with_step(altered(helper.make_node("Mul", ["right", "much"], [OUTPUT]), much=1.01))
    status, report = told(given, tmp_path, capsys)
    assert (status, report["ok"]) == (1, False)
    found = step_of(report)
    right = OnnxRunner(bundle()).run(Entry.STEP, feeds(Entry.STEP))[OUTPUT]
    assert found["worst"] == pytest.approx(0.01 * np.abs(right).max() / ALLOWED, rel=1e-2)
    assert (found["output"], found["call"]) == (OUTPUT, 1)
    assert main(["--bundle", str(written(given, tmp_path))]) == 1
    assert "WRONG step" in capsys.readouterr().out


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_no_number_is_wrong(value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = with_step(altered(helper.make_node("Add", ["right", "none"], [OUTPUT]), none=value))
    status, report = told(given, tmp_path, capsys)
    assert status == 1
    assert step_of(report)["worst"] is None  # JSON has no infinity
    assert main(["--bundle", str(written(given, tmp_path))]) == 1
    assert "error inf of what is allowed, x_next in call 1" in capsys.readouterr().out


def _late() -> bytes:
    """A step that is right twice and off by a tenth in its third call: ONNX Runtime's random numbers remember."""
    for seed in range(1, 99):
        draw = helper.make_node("RandomUniform", [], ["drawn"], shape=[1], seed=float(seed))
        info = helper.make_tensor_value_info("drawn", TensorProto.FLOAT, [1])
        graph = helper.make_graph([draw], "draws", [], [info])
        opset = [helper.make_opsetid("", 20)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        one, two, three = (float(session.run(None, {})[0][0]) for _ in range(3))
        if three > max(one, two) + 0.01:
            return altered(
                draw,
                helper.make_node("Greater", ["drawn", "most"], ["late"]),
                helper.make_node("Cast", ["late"], ["now"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["now", "tenth"], ["error"]),
                helper.make_node("Add", ["right", "error"], [OUTPUT]),
                most=max(one, two) + 0.005,
                tenth=0.1,
            )
    raise AssertionError("no third number was the greatest")


def test_a_fault_that_comes_only_with_the_third_call_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = told(with_step(_late()), tmp_path, capsys)
    assert status == 1
    found = step_of(report)
    assert found["call"] == 3
    assert found["worst"] == pytest.approx(0.1 / ALLOWED, rel=1e-2)


class _Forgetful:
    """A runtime that writes its outputs in the first two calls, and then leaves them as they are."""

    def __init__(self, runner: OnnxRunner) -> None:
        self.run = runner.run
        self._runner = runner

    def repeat(self, entry: Entry) -> Call:
        inner = self._runner.repeat(entry)
        written: list[Sequence[Array]] = []

        def call(inputs: Sequence[Array]) -> Sequence[Array]:
            if len(written) < 2:
                written.append(inner(inputs))
                return written[-1]
            written.append(written[-2])
            return written[-1]

        return call


def test_an_output_that_a_later_call_leaves_out_is_found() -> None:
    given = checked(bundle())
    findings = list(examine(given, _Forgetful(OnnxRunner(given))))
    assert [finding.ok for finding in findings] == [False] * len(GRAPHS)
    assert all(finding.call == 3 and finding.worst > 1e6 for finding in findings)
    assert REPEATS > 3


def test_a_graph_that_cannot_be_loaded_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = with_step(b"not a graph")
    status, report = told(given, tmp_path, capsys)
    assert (status, report["ok"]) == (1, False)
    found = step_of(report)
    assert "could not load it" in found["failure"]
    assert (found["worst"], found["us"]) == (None, None)
    assert main(["--bundle", str(written(given, tmp_path))]) == 1
    assert "WRONG step      graph step: ONNX Runtime" in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.0001, 1)])
def test_where_no_error_is_allowed_only_the_same_bits_are_right(
    factor: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = altered(helper.make_node("Mul", ["right", "much"], [OUTPUT]), much=factor)
    given = msgspec.structs.replace(checked(bundle(), allowed=0), graphs=with_step(step).graphs)
    found, report = told(given, tmp_path, capsys)
    assert found == status
    assert [each["ok"] for each in report["graphs"] if each["graph"] == "step"] == [status == 0]


def test_a_bundle_without_golden_vectors_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = written(bundle(), tmp_path)
    with pytest.raises(BundleError, match="no golden vectors") as caught:
        main(["--bundle", str(path)])
    assert caught.value.where == "graph begin"
    assert "edgepfl export" in caught.value.remedy


def test_a_file_that_is_not_there_and_one_that_is_no_bundle_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        main(["--bundle", str(tmp_path / "gone.bundle")])
    assert caught.value.where.endswith("gone.bundle")
    (tmp_path / "notes").write_text("no bundle")
    assert edgepfl(["doctor", "--bundle", str(tmp_path / "notes")]) == 2
    assert "notes: not a bundle file" in capsys.readouterr().err


def test_threads_are_a_sensible_number(tmp_path: Path) -> None:
    path = written(checked(bundle()), tmp_path)
    for word in ("0", "-1", "1000"):
        with pytest.raises(ConfigError, match=f"--threads: {word} is not a whole number from 1 to 256"):
            main(["--bundle", str(path), "--threads", word])


def both() -> Bundle:
    return checked(msgspec.structs.replace(bundle(), graphs={**bundle().graphs, **executorch_bundle().graphs}))


def test_it_examines_executorch_through_the_native_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--runtime", "executorch", "--library", str(library_folder()))
    status, report = told(both(), tmp_path, capsys, *words)
    assert (status, report["ok"]) == (0, True)
    assert report["runtime"].startswith("executorch ")
    assert len(report["graphs"]) == len(GRAPHS)
    graphs = both().graphs["executorch"]
    wrong = {**graphs, Entry.FINISH: executorch_bundle().graphs["executorch"][Entry.FINISH][:-64]}
    status, report = told(msgspec.structs.replace(both(), graphs={"executorch": wrong}), tmp_path, capsys, *words)
    assert status == 1
    assert [each["graph"] for each in report["graphs"] if not each["ok"]] == ["finish"]


def test_a_bundle_without_the_runtimes_graphs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(checked(bundle()), tmp_path))
    with pytest.raises(BundleError, match="no executorch graphs, only onnx") as caught:
        main(["--bundle", path, "--runtime", "executorch"])
    assert "--runtimes executorch" in caught.value.remedy
    assert edgepfl(["doctor", "--bundle", path, "--runtime", "executorch"]) == 2
    assert "only onnx" in capsys.readouterr().err
