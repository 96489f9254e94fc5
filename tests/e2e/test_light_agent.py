"""A real agent in a process of its own: no torch, no algorithm, little memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _runner_library import library_folder
from _shared import command, digits_bundle, watch_bundle, windows

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.status import RunStatus
from edgepfl.errors import RunError
from simulators.broker import open_broker

MOST_MIB = {"onnx": 65, "executorch": 60}
DEVICE_TESTS = Path(__file__).parents[1] / "device_agent"
FORBIDDEN = ("torch", "edgepfl.algorithms", "onnx", "onnxscript", "exporters", "coordinator", "simulators")

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in {forbidden!r}):
            raise ModuleNotFoundError(f"{{name}} is not for devices")

sys.meta_path.insert(0, Refuse())
"""

ROUND = """
import asyncio
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from _hand import DEVICE, LoopbackBroker, agent, examples, hand, play, until
from edgepfl.bundle import unpack
from edgepfl.wire import Commit, Report

async def scenario():
    broker, folder = LoopbackBroker(), Path(sys.argv[3])
    async with hand(broker, folder, unpack(Path(sys.argv[2]).read_bytes())) as coordinator:
        async with agent(broker, folder / "device", data=examples(64)) as one:
            await coordinator.work(coordinator.task(evaluate=True))
            coordinator.say(Commit("run", 1, (DEVICE,)))
            await until(lambda: one.place.store.keep("run").round == 1)
            report = await coordinator.work(coordinator.task(round_=2, accepted=1, steps=0, evaluate=True, final=True))
            print(sorted(report.metrics))

play(scenario())
"""

PLUG_IN = '''
"""Data, and a record of what this process has imported: when it loads the data, and at its end."""

import atexit
import json
import sys
from pathlib import Path

import numpy as np


def load(path, record):
    def write(when):
        Path(record, f"{when}.json").write_text(json.dumps(sorted(sys.modules)), encoding="utf-8")

    write("start")
    atexit.register(write, "end")
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}
'''


def forbidden(modules: list[str]) -> list[str]:
    return [name for name in modules if any(name == each or name.startswith(f"{each}.") for each in FORBIDDEN)]


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A program behind an import hook that refuses what no device has."""
    text = REFUSE.format(forbidden=FORBIDDEN) + program
    return subprocess.run(
        [sys.executable, "-c", text, *words], capture_output=True, text=True, check=False, timeout=120
    )


def test_whole_rounds_of_the_agent_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    done = run(ROUND, str(DEVICE_TESTS), str(digits_bundle(tmp_path)), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "accuracy.personal" in done.stdout


def test_the_hook_would_notice() -> None:
    for name in ("torch", "edgepfl.algorithms.ditto"):
        done = run(f"import {name}")
        assert done.returncode != 0
        assert "is not for devices" in done.stderr


async def trained(state: Path, bundle: Path) -> RunStatus:
    """A run to its end, asked of a coordinator that may be starting."""
    config = RunConfig(rounds=2, goal=1, minimum=1, evaluate_every=1)
    last: RunStatus | None = None
    while last is None:
        try:
            async for answer in asking.ask(state, asking.Request("start", bundle=str(bundle), config=config)):
                name = str(answer.ok)
            async for answer in asking.ask(state, asking.Request("watch", run=name)):
                last = answer.ok if isinstance(answer.ok, RunStatus) else last
        except RunError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            await asyncio.sleep(0.1)
    return last


def settings(runtime: str) -> str:
    """The agent's, for a runtime."""
    library = f'library = "{library_folder()}"\n' if runtime == "executorch" else ""
    return f'[runtime]\nkind = "{runtime}"\n{library}'


@pytest.mark.parametrize(("runtime", "other"), [("onnx", "executorch"), ("executorch", "onnxruntime")])
def test_an_agent_that_took_part_in_a_run_is_small_and_never_imported_torch(
    runtime: str, other: str, tmp_path: Path
) -> None:
    data = windows(90, seed=1)
    np.savez(tmp_path / "data.npz", train_x=data.train_x, train_y=data.train_y, test_x=data.test_x, test_y=data.test_y)
    (tmp_path / "plug_in.py").write_text(PLUG_IN, encoding="utf-8")
    (tmp_path / "coordinator").mkdir()
    with open_broker() as broker:
        fleet = f'fleet = "home"\n[broker]\nurl = "{broker.url}"\n'
        (tmp_path / "coordinator.toml").write_text(f'state = "coordinator"\n{fleet}', encoding="utf-8")
        (tmp_path / "agent.toml").write_text(
            f'device = "pi-1"\nstate = "agent"\n{fleet}[data]\nsource = "plug_in:load"\n'
            f'options = {{path = "{tmp_path}/data.npz", record = "{tmp_path}"}}\n{settings(runtime)}',
            encoding="utf-8",
        )
        with (
            command(tmp_path, "coordinator", "coordinator", "--config", str(tmp_path / "coordinator.toml")),
            command(tmp_path, "agent", "agent", "--config", str(tmp_path / "agent.toml")) as agent,
        ):
            status = asyncio.run(asyncio.wait_for(trained(tmp_path / "coordinator", watch_bundle(tmp_path)), 120))
            agent.check()
            agent.measure()
    assert (status.status, status.round) == ("done", 3)
    assert "accuracy.personal" in status.metrics
    assert 20 < agent.pss_mib <= MOST_MIB[runtime]
    for when in ("start", "end"):
        modules = json.loads((tmp_path / f"{when}.json").read_text(encoding="utf-8"))
        assert forbidden(modules) == []
        assert "device_agent.service" in modules
    assert other not in modules
