"""The native library in processes of their own: damaged files, hostile arguments, threads, memory, no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from _components import absent
from _graphs import GRAPHS
from _pte import executorch_bundle
from _runner_library import library_folder

from device_agent.runners import trial
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from device_agent.runners.library import ABI, NAME, STEP, Library
from edgepfl.bundle import pack
from edgepfl.errors import ConfigError, GraphFailed
from edgepfl.plan import Entry

MOST_MIB = 60

DAMAGED = """
import json, random, sys
from pathlib import Path
import msgspec
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from edgepfl.bundle import unpack
from edgepfl.errors import BundleError, GraphFailed
from edgepfl.plan import Entry
import numpy as np

given = unpack(Path(sys.argv[1]).read_bytes())
whole = given.graphs["executorch"][Entry.STEP]
settings = ExecutorchSettings(folder=Path(sys.argv[2]))
feeds = {port.name: np.ones(port.spec.shape, port.spec.dtype) for port in given.plan.graphs[Entry.STEP].inputs}
source = random.Random(5)

def attempt(data):
    graphs = {"executorch": {**given.graphs["executorch"], Entry.STEP: bytes(data)}}
    try:
        ExecutorchRunner(msgspec.structs.replace(given, graphs=graphs), settings).run(Entry.STEP, feeds)
    except (GraphFailed, BundleError) as error:
        assert error.where.startswith("graph step"), error
        return 0
    return 1

cut = sum(attempt(whole[: len(whole) * part // 40]) for part in range(40))
ran = 0
for _ in range(80):
    data = bytearray(whole)
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    ran += attempt(data)
print(json.dumps({"cut": cut, "flipped": ran}))
"""

ROUND = """
import json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("torch", "onnx", "executorch", "edgepfl.algorithms", "exporters")):
            raise ModuleNotFoundError(f"{name} is not for devices")

sys.meta_path.insert(0, Refuse())
from pathlib import Path
import numpy as np
import device_agent.cli, edgepfl.bus.mqtt
from device_agent.config import RuntimeSettings
from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners.choice import choose
from edgepfl.bundle import unpack

given = unpack(Path(sys.argv[1]).read_bytes())
choice = choose(RuntimeSettings(kind="executorch", library=sys.argv[2], threads=int(sys.argv[3])))
interpreter = Interpreter(given.plan, given.model, choice.runner(given))
rows = np.arange(60, dtype=np.float32).reshape(20, 3)
examples = Examples(rows, np.ones(20, np.int64), rows, np.arange(20) % 2)
start = Start({"w": given.model}, None, {}, 3)
found = evaluate(interpreter, start, examples, 2)
result = interpreter.train(start, examples, 50)
[pss] = [line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")]
strange = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "onnxruntime", "executorch"})
print(json.dumps({"pss_mib": int(pss) / 1024, "strange": strange, "version": choice.version,
                  "metrics": dict(found.metrics), "delta": result.upload["delta"]["mean"].tolist()}))
"""


def in_a_process(program: str, *arguments: object) -> dict[str, object]:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.write_bytes(pack(executorch_bundle()))
    return path


def test_a_damaged_graph_is_an_error_and_never_the_end_of_the_agent(packed: Path) -> None:
    found = in_a_process(DAMAGED, packed, library_folder())
    assert found["cut"] == 0
    assert isinstance(found["flipped"], int)
    assert found["flipped"] < 60  # a bit that nobody reads changes nothing


def test_a_round_needs_no_torch_and_little_memory(packed: Path) -> None:
    found = in_a_process(ROUND, packed, library_folder(), 1)
    assert found["strange"] == []
    assert str(found["version"]).startswith("executorch 1.")
    assert isinstance(found["pss_mib"], float)
    assert found["pss_mib"] <= MOST_MIB


def test_two_threads_give_the_numbers_of_one(packed: Path) -> None:
    one, two = (in_a_process(ROUND, packed, library_folder(), threads) for threads in (1, 2))
    np.testing.assert_allclose(np.array(one["delta"]), np.array(two["delta"]), rtol=1e-6)
    assert one["metrics"] == two["metrics"]
    assert np.abs(np.array(one["delta"])).min() > 1


def test_programs_with_two_numbers_of_threads_above_one_are_refused(packed: Path) -> None:
    program = """
import json, sys
from pathlib import Path
from device_agent.runners.library import Library
from edgepfl.bundle import unpack
from edgepfl.errors import GraphFailed
data = unpack(Path(sys.argv[1]).read_bytes()).graphs["executorch"]["step"]
library = Library(Path(sys.argv[2]))
held = [library.load(data, threads) for threads in (2, 1, 2)]
says = []
for threads in (3, 0, 1000):
    try:
        library.load(data, threads)
    except GraphFailed as error:
        says.append(error.what)
print(json.dumps({"held": len(held), "says": says}))
"""
    found = in_a_process(program, packed, library_folder())
    says = found["says"]
    assert isinstance(says, list)
    assert says[0] == "programs are loaded with 2 threads already, not 3"
    assert says[1:] == ["the number of threads must be 1 to 256"] * 2


HOSTILE = """
import ctypes, json, sys
from pathlib import Path
from device_agent.runners.library import Library
from edgepfl.bundle import unpack
data = unpack(Path(sys.argv[1]).read_bytes()).graphs["executorch"]["step"]
library = Library(Path(sys.argv[2]))
functions, program, says = library._functions, library.load(data), []
handle, reads, writes = program._handle, program._reads.arguments, program._writes.arguments

def tell(result):
    assert result in (None, -1), result
    says.append(functions.edgepfl_error().decode())

tell(functions.edgepfl_load(None, 0, 1))
tell(functions.edgepfl_load(data, 0, 1))
crooked = ctypes.create_string_buffer(data, len(data) + 64)
start = (-ctypes.addressof(crooked)) % 16 + 1
functions.edgepfl_load.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32)
tell(functions.edgepfl_load(ctypes.addressof(crooked) + start, len(data), 1))
tell(functions.edgepfl_ports(None, 0))
tell(functions.edgepfl_ports(handle, 2))
tell(functions.edgepfl_describe(handle, 0, 0, None))
tell(functions.edgepfl_run(None, *reads, *writes))
tell(functions.edgepfl_run(handle, reads[0], reads[1], 3, *writes))
tell(functions.edgepfl_run(handle, None, None, 4, *writes))
tell(functions.edgepfl_run(handle, *reads, *writes))  # all addresses are null
program._reads.addresses[:] = [ctypes.addressof(crooked)] * 4
wrong = (ctypes.c_uint64 * 4)(12, 4, 40, 16)
tell(functions.edgepfl_run(handle, reads[0], wrong, 4, *writes))
functions.edgepfl_destroy(None)
print(json.dumps({"says": says}))
"""


def test_the_interface_checks_every_argument(packed: Path) -> None:
    says = in_a_process(HOSTILE, packed, library_folder())["says"]
    assert says == [
        "it is empty",
        "it is empty",
        "its bytes are not aligned to 16",
        "there is no program",
        "there is no such side",
        "there is no program, or nowhere to write",
        "there is no program",
        "it has 4 inputs, not 3",
        "it has 4 inputs, not 4",
        "input 0 has 12 bytes, not 0",
        "input 2 has 48 bytes, not 40",
    ]
    assert len(GRAPHS[Entry.STEP].inputs) == 4


def test_a_crash_of_the_first_run_is_told_with_its_signal(tmp_path: Path) -> None:
    step = tmp_path / "step"
    step.write_text("#!/bin/sh\nkill -SEGV $$\n", encoding="utf-8")
    step.chmod(0o755)
    with pytest.raises(GraphFailed, match="ends its process with SIGSEGV") as caught:
        trial.attempt(step, b"graph", "graph step")
    assert caught.value.where == "graph step"
    with pytest.raises(GraphFailed, match="cannot be started") as caught:
        trial.attempt(tmp_path / "none", b"graph", "graph step")
    assert "build-runner" in caught.value.remedy


def test_a_graph_that_crashes_is_never_loaded_by_the_agent(tmp_path: Path) -> None:
    for file in library_folder().iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / STEP).unlink()
    (tmp_path / STEP).write_text("#!/bin/sh\nkill -BUS $$\n", encoding="utf-8")
    (tmp_path / STEP).chmod(0o755)
    own = ExecutorchRunner(executorch_bundle(), ExecutorchSettings(folder=tmp_path))
    with pytest.raises(GraphFailed, match="could not load it: its first run ends its process with SIGBUS") as caught:
        own.run(Entry.BEGIN, {"w": np.ones(3, np.float32)})
    assert caught.value.where == "graph begin"
    assert not own._loaded


def test_a_first_run_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = tmp_path / "step"
    step.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="utf-8")
    step.chmod(0o755)
    monkeypatch.setattr(trial, "_PATIENCE", 0.5)
    with pytest.raises(GraphFailed, match="does not end") as caught:
        trial.attempt(step, b"graph", "graph step")
    assert caught.value.remedy == "Export the bundle again"


def test_a_library_of_another_interface_is_refused(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        absent("gcc", "apt install gcc")
    for body, says in (("int edgepfl_abi(void) { return 99; }", "version 99"), ("int other;", "version None")):
        folder = tmp_path / says.replace(" ", "-")
        folder.mkdir()
        (folder / "a.c").write_text(body, encoding="utf-8")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / NAME, folder / "a.c"], check=True)
        with pytest.raises(ConfigError, match=f"{says} of its interface, and this edgepfl {ABI}") as caught:
            Library(folder)
        assert "build-runner" in caught.value.remedy


def test_a_graph_runs_alone_on_raw_bytes(tmp_path: Path) -> None:
    feeds = [
        np.ones(3, np.float32),
        np.float32(0.5),
        np.full((4, 3), 3, np.float32),
        np.array([1, 1, 0, 0], np.float32),
    ]
    (tmp_path / "in").write_bytes(b"".join(array.tobytes() for array in feeds))
    (tmp_path / "step.pte").write_bytes(executorch_bundle().graphs["executorch"][Entry.STEP])
    words: list[str | Path] = [
        library_folder() / STEP,
        "step.pte",
        "--inputs",
        "in",
        "--outputs",
        "out",
        "--repeat",
        "3",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert np.frombuffer((tmp_path / "out").read_bytes(), np.float32).tolist() == [2, 2, 2, 6]
    told = msgspec.json.decode(done.stdout)
    assert (told["inputs"], told["outputs"], told["abi"]) == (4, 2, ABI)
    assert 0 < told["pss_kib"] < 60 * 1024
    (tmp_path / "in").write_bytes(b"short")
    failed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (failed.returncode, failed.stderr) == (1, "edgepfl_step: in is too short\n")
