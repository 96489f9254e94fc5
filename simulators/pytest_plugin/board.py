"""The object behind the fixture ``board``: one agent as a real board runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from device_agent.data import Examples, named
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import RunError
from simulators.faults import CALM, FaultProxy
from simulators.processes import Command
from simulators.profiles import DeviceProfile, network
from simulators.pytest_plugin.background import Background
from simulators.pytest_plugin.kept import ending
from simulators.pytest_plugin.witness import Witness


@dataclass(frozen=True)
class Checkup:
    """What ``edgepfl doctor`` found.

    Attributes:
        ok: whether every graph computes what the exporter promised.
        graphs: by graph, its findings: ``ok``, ``worst`` (error in units of what is allowed), ``us``, ``failure``.
        about: machine, runtime, memory.
    """

    ok: bool
    graphs: Mapping[str, Mapping[str, Any]]
    about: Mapping[str, Any]


class Board(Witness):
    """``edgepfl agent`` in a process of its own, connected through its profile's link.

    It ends with the context.  Its runtime, its link and the room on its disk are the profile's; it computes as fast as
    this machine does.

    Args:
        name: the device's.
        profile: what it is.
        url: the broker's.
        fleet: the fleet's name.
        folder: empty, for settings, state and log.
        patience: seconds to wait for anything.

    Attributes:
        name: likewise.
        profile: likewise.
    """

    def __init__(
        self, name: str, profile: DeviceProfile, *, url: str, fleet: str, folder: Path, patience: float = 600.0
    ) -> None:
        self.name, self.profile = name, profile
        self._url, self._fleet, self._folder, self._patience = url, fleet, folder, patience
        self._stack = ExitStack()
        self._command = Command(["agent", "--config", str(folder / "agent.toml")], folder / "agent.log")
        self._started = False
        self._off = False

    def __repr__(self) -> str:
        return f"<board {self.name}, {self.profile.name}>"

    @property
    def process(self) -> int | None:
        """The number of its process, once it was started."""
        return self._command.process

    @property
    def memory_mib(self) -> float:
        """The largest proportional set size that was seen, now included: what would be free without it."""
        self._command.measure()
        return self._command.pss_mib

    @property
    def log_file(self) -> Path:
        """Where it logs."""
        return self._folder / "agent.log"

    def start(self, examples: Examples) -> Self:
        """Start the agent with these examples."""
        self._store(examples)
        self._write_settings(self._linked())
        self._stack.enter_context(self._command)
        self._started = True
        return self

    def kill(self) -> None:
        """Cut its power: nothing of it is said or written any more."""
        self._off = True
        self._command.kill()

    def restart(self) -> None:
        """Give it its power back: it starts from what its storage holds."""
        self._command.start()
        self._off = False

    def check(self) -> None:
        """See that it did not end by itself.

        Raises:
            RunError: it did, or was never started.
        """
        if not self._started:
            raise RunError("it was not started", where=f"board {self.name}", remedy="Call board.start(examples)")
        if not self._off:
            self._command.check()

    def doctor(self, bundle: Bundle) -> Checkup:
        """Whether this machine, with the board's runtime, computes what a bundle promises.

        Raises:
            RunError: nothing could be checked.
        """
        file = self._folder / "doctor.bundle"
        file.write_bytes(pack(bundle))
        words = ["doctor", "--bundle", str(file), "--runtime", self.profile.runtime, "--json"]
        done = subprocess.run(  # noqa: S603  our own command
            [sys.executable, "-m", "edgepfl", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=self._patience,
        )
        if done.returncode not in {0, 1}:
            raise RunError(done.stderr.strip(), where="edgepfl doctor")
        found = json.loads(done.stdout)
        graphs = {each.pop("graph"): each for each in found.pop("graphs")}
        return Checkup(found.pop("ok"), graphs, found)

    def figures(self) -> Mapping[str, str | int | float]:
        """What JUnit XML shall hold of it."""
        return {"board_memory_mib": round(self.memory_mib, 1)} if self._started else {}

    def account(self, test: str) -> str:  # noqa: ARG002  only a fleet says how to have it again
        """The end of its log."""
        return ending(self.log_file, f"the log of board {self.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _linked(self) -> str:
        """The broker's URL as the board reaches it: behind its profile's link, where that is no perfect one."""
        link = network(self.profile)
        if link == CALM:
            return self._url
        background = self._stack.enter_context(Background(self._patience))
        proxy = FaultProxy(self._url, link)
        background.run(proxy.__aenter__())
        self._stack.callback(lambda: background.run(proxy.__aexit__(None, None, None)))
        return proxy.url

    def _store(self, examples: Examples) -> None:
        arrays = {"train_y": examples.train_y, "test_y": examples.test_y}
        for part in ("train", "test"):
            arrays |= dict(named(f"{part}_x", getattr(examples, f"{part}_x")))
        np.savez(self._folder / "data.npz", allow_pickle=False, **arrays)

    def _write_settings(self, url: str) -> None:
        quota = int(self.profile.storage_mib or 0)
        (self._folder / "agent.toml").write_text(
            f'device = "{self.name}"\nfleet = "{self._fleet}"\nstate = "state"\n[broker]\nurl = "{url}"\n'
            f'[data]\nsource = "data.npz"\n[runtime]\nkind = "{self.profile.runtime}"\n'
            f"[transfer]\nquota_mib = {quota}\n",
            encoding="utf-8",
        )
