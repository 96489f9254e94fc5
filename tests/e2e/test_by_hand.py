"""The README's second section: every process started by hand, over the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _shared import digits

from simulators.broker import BrokerHandle, open_broker

PATIENCE = 120.0  # seconds; far more than anything here takes


@dataclass
class Desk:
    """A folder with settings, and the processes started from it."""

    folder: Path
    url: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def write(self) -> None:
        """A coordinator's settings, and those of two agents: one reads an .npz, the other a .csv file."""
        broker = f'[broker]\nurl = "{self.url}"\n'
        (self.folder / "coordinator.toml").write_text(f'fleet = "home"\n{broker}', encoding="utf-8")
        one, two = list(digits(4).devices.values())[1:3]
        np.savez(
            self.folder / "one.npz", train_x=one.train_x, train_y=one.train_y, test_x=one.test_x, test_y=one.test_y
        )
        rows = np.column_stack([np.concatenate([two.train_x, two.test_x]), np.concatenate([two.train_y, two.test_y])])
        np.savetxt(self.folder / "two.csv", rows, fmt="%g", delimiter=",")
        for name, source in (("pi-1", "one.npz"), ("pi-2", "two.csv")):
            text = f'device = "{name}"\nfleet = "home"\nstate = "{name}"\n{broker}[data]\nsource = "{source}"\n'
            (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")

    def start(self, name: str, *words: str) -> None:
        """A process that goes on."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "edgepfl", *words], cwd=self.folder, stdout=log, stderr=log
            )

    def call(self, *words: str, status: int = 0) -> str:
        """A command that ends; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "edgepfl", *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def until(self, name: str, words: str) -> None:
        """Wait for words in a log."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.log(name):
            assert self.running[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.05)

    def end(self, name: str) -> int:
        """SIGTERM; the exit status."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with open_broker() as broker:
        made = Desk(tmp_path, broker.url)
        made.write()
        yield made
        for process in made.running.values():  # of a test that failed
            process.kill()
            process.wait()


def status(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.broker
def test_two_agents_a_coordinator_and_three_runs_by_hand(desk: Desk) -> None:
    config = ("--config", "coordinator.toml")
    desk.start("coordinator", "coordinator", *config)
    for name in ("pi-1", "pi-2"):
        desk.start(name, "agent", "--config", f"{name}.toml")
    made = desk.call(
        "export", "--model", "exporters.zoo:mlp", "--algorithm", "fedavg", "--set", "lr=0.1", "-o", "digits.bundle"
    )
    assert made.startswith("digits.bundle: fedavg on mlp")
    for name in ("pi-1", "pi-2"):
        desk.until("coordinator", f"{name} is here")
        desk.until(name, "connected")

    train = ("run", "start", *config, "--bundle", "digits.bundle", "--goal", "2", "--minimum", "2")
    lines = desk.call(*train, "--rounds", "3", "--evaluate-every", "1", "--json").splitlines()
    last = status(lines[-1])
    assert (last["status"], last["round"], last["here"]) == ("done", 4, ["pi-1", "pi-2"])
    assert last["metrics"].keys() >= {"loss", "accuracy.personal", "accuracy.global"}
    committed = [status(line)["round"] for line in lines]
    assert committed == sorted(committed)
    now = status(desk.call("run", "status", *config, "--json"))
    assert [(device["name"], device["state"]) for device in now["devices"]] == [
        ("pi-1", "present"),
        ("pi-2", "present"),
    ]
    assert {**now, "devices": []} == last

    again = status(desk.call(*train, "--rounds", "3", "--set", "lr=0.05", "--json").splitlines()[-1])
    assert again["run"] != last["run"]
    assert again["state_sha256"] != last["state_sha256"]

    endless = status(desk.call(*train, "--rounds", "1000000", "--detach", "--json"))
    assert endless.keys() == {"run"}
    desk.until("pi-1", f"of {endless['run']} is done")
    stopped = status(desk.call("run", "stop", *config, endless["run"], "--json"))
    assert (stopped["run"], stopped["status"]) == (endless["run"], "stopped")
    assert "stopped by a person" in desk.call("run", "status", *config)
    assert status(desk.call("run", "status", *config, last["run"], "--json"))["status"] == "done"

    for name in ("pi-1", "pi-2", "coordinator"):
        assert desk.end(name) == 0
        assert "Traceback" not in desk.log(name)


@pytest.mark.broker
def test_an_agent_waits_for_its_broker_and_says_so(tmp_path: Path, broker: BrokerHandle) -> None:
    broker.stop()
    desk = Desk(tmp_path, broker.url)
    desk.write()
    desk.start("pi-1", "agent", "--config", "pi-1.toml")
    try:
        desk.until("pi-1", "next attempt in")
        assert "pi-1: connected" not in desk.log("pi-1")
        broker.start()
        desk.until("pi-1", "pi-1: connected")
    finally:
        assert desk.end("pi-1") == 0
