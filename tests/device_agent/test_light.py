"""The agent is light: a whole round without torch, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from _graphs import bundle

from edgepfl.bundle import pack

MOST_MIB = 65

ROUND = """
import json, os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("torch", "onnx.", "onnxscript", "edgepfl.algorithms", "exporters")) or name == "onnx":
            raise ModuleNotFoundError(f"{name} is not for devices")

sys.meta_path.insert(0, Refuse())
from pathlib import Path
import numpy as np
import device_agent.cli, edgepfl.bus.mqtt
from device_agent import config, sources, store
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners.onnx import OnnxRunner
from edgepfl import codec
from edgepfl.bundle import unpack

folder = Path(sys.argv[1])
settings = config.load(folder / "agent.toml")
given = unpack((folder / "bundle").read_bytes())
examples = sources.load(settings.data).fit(given.plan)
interpreter = Interpreter(given.plan, given.model, OnnxRunner(given))
start = Start({"w": given.model}, None, {}, 3)
found = evaluate(interpreter, start, examples, 2)
result = interpreter.train(start, examples, 50)
with store.Store(Path(settings.state) / "agent.db") as own:
    own.commit_pending("run", 0, 0, keep=codec.encode(result.keep), report=b"r", upload=codec.encode(result.upload))
    waiting = len(own.outbox())
[pss] = [line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")]
strange = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "onnx", "scipy", "pandas", "matplotlib"})
print(json.dumps({"pss_mib": int(pss) / 1024, "strange": strange, "waiting": waiting, "metrics": dict(found.metrics)}))
"""

TOML = """
device = "pi-07"
fleet = "watches"
[broker]
url = "mqtt://localhost"
[data]
source = "data.csv"
options = {label = "y", test_fraction = 0.25}
"""


def test_a_round_needs_no_torch_and_little_memory(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(pack(bundle()))
    (tmp_path / "agent.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "data.csv").write_text("a,b,c,y\n" + "1,2,3,1\n4,5,6,0\n" * 10, encoding="utf-8")
    command = [sys.executable, "-W", "error", "-c", ROUND, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["strange"] == []
    assert found["waiting"] == 1
    assert found["metrics"]["accuracy.personal"] == 0.4
    assert found["pss_mib"] <= MOST_MIB


def test_the_hook_of_the_test_above_would_notice(tmp_path: Path) -> None:
    program = ROUND.partition("from pathlib")[0] + "import edgepfl.algorithms"
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "edgepfl.algorithms is not for devices" in done.stderr
