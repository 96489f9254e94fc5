"""Promise 7: wall clocks are never compared across machines, and no deadline is measured with one.

Every process gets a wall clock of its own: the coordinator's and the devices' are years apart, and each jumps an hour
forth and back several times a second.  Leases and heartbeats are short, so a round spans many jumps.
"""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from _fleet import FLEET, everyone, toy_examples
from _scale import record, scaled

from coordinator import asking
from coordinator.journal import Journal
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import RunError
from simulators.broker import BrokerHandle

ROOT = Path(__file__).parents[2]
YEAR = 365.25 * 86400
DAY_ONE = -(time.time() - 86400.0)
"""What makes a clock of today one of the second of January 1970."""
CLOCKS = {"coordinator": 0.0, "pi-1970": DAY_ONE, "pi-2036": 10 * YEAR, "pi-today": 0.0}
JUMP = 3600.0
STEPS = scaled(20_000, 60_000)  # some seconds of work, over which the clocks jump

WRONG_CLOCK = """
import datetime, sys, time

offset, jump = float(sys.argv[1]), float(sys.argv[2])
real, steady = time.time, time.monotonic

def wall():
    return real() + offset + (jump if int(steady() * 4) % 2 else -jump)

class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(wall(), tz)

    @classmethod
    def utcnow(cls):
        return cls.utcfromtimestamp(wall())

time.time, time.time_ns, datetime.datetime = wall, lambda: int(wall() * 1e9), Wrong
from edgepfl.__main__ import main
sys.exit(main(sys.argv[3:]))
"""


@contextmanager
def at_its_own_time(folder: Path, name: str, command: str, settings: str) -> Iterator[Path]:
    """``edgepfl COMMAND`` with a wrong wall clock, in a process; its log."""
    config, log = folder / f"{name}.toml", folder / f"{name}.log"
    config.write_text(settings)
    words = [sys.executable, "-c", WRONG_CLOCK, str(CLOCKS[name]), str(JUMP), command, "--config", str(config)]
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT) as process:
        try:
            yield log
        finally:
            process.kill()


def agent_settings(folder: Path, name: str, number: int, broker: str) -> str:
    examples = toy_examples(number)
    arrays = {part: getattr(examples, part) for part in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(folder / f"{name}.npz", **arrays)
    return f'device = "{name}"\nfleet = "{FLEET}"\nstate = "{name}"\n{broker}[data]\nsource = "{name}.npz"\n'


async def asked(state: Path, request: asking.Request) -> asking.Answer:
    """The coordinator's answer, as soon as it answers at all."""
    while True:
        try:
            async for answer in asking.ask(state, request):
                return answer
        except RunError as error:
            if not isinstance(error.__cause__, OSError):
                raise
        await asyncio.sleep(0.05)


async def finished(state: Path, request: asking.Request) -> str:
    """The id of the run, at its end."""
    started = await asked(state, request)
    async for _ in asking.ask(state, asking.Request("watch", run=str(started.ok))):
        pass
    return str(started.ok)


@pytest.mark.broker
@pytest.mark.promise(7)
@pytest.mark.timeout(180)
def test_a_fleet_whose_clocks_are_years_apart_and_jump_trains_as_if_they_were_right(
    broker: BrokerHandle, small: Bundle, tmp_path: Path
) -> None:
    table = f'[broker]\nurl = "{broker.url}"\n'
    (tmp_path / "bundle").write_bytes(pack(small))
    names = [name for name in CLOCKS if name != "coordinator"]
    config = everyone(len(names), rounds=2, steps=STEPS, lease=3.0, deadline=120.0, attempts=1)
    with ExitStack() as running:
        settings = f'fleet = "{FLEET}"\nstate = "state"\n{table}'
        logs = {"coordinator": running.enter_context(at_its_own_time(tmp_path, "coordinator", "coordinator", settings))}
        for number, name in enumerate(names):
            own = agent_settings(tmp_path, name, number, table)
            logs[name] = running.enter_context(at_its_own_time(tmp_path, name, "agent", own))
        began = time.monotonic()
        request = asking.Request("start", bundle=str(tmp_path / "bundle"), config=config)
        run = asyncio.run(finished(tmp_path / "state", request))
        took = time.monotonic() - began
    assert "\n1970-01-" in logs["pi-1970"].read_text()
    assert "\n2036-" in logs["pi-2036"].read_text()
    with closing(Journal(tmp_path / "state" / "journal.db")) as journal:
        row = journal.run(run)
        assert row is not None
        assert row.status == "done", row
        counted = {(result.round, result.device): result.steps for result in journal.results(run)}
    assert counted == {(number, name): STEPS if number < 3 else 0 for number in (1, 2, 3) for name in names}
    record(7, "clocks", broker=broker.name, devices=len(names), seconds=round(took, 1), jumps=int(took * 4))


WALL_CLOCKS = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}
CALENDARS = {"now", "utcnow", "today"}
ALLOWED = {
    "device_agent/conditions.py": "a device's time windows are of its own day",
    "coordinator/storage/directory.py": "the ages of files in one directory, by that directory's own clock",
    "coordinator/storage/location.py": "the ages of a store's blobs, which have a grace period of minutes",
    "coordinator/storage/objects.py": "likewise",
}


def wall_clocks(source: str) -> list[int]:
    """The lines that read a wall clock."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr=attr) if attr in WALL_CLOCKS:
                found.append(node.lineno)
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=attr) if (
                name in {"datetime", "date"} and attr in CALENDARS
            ):
                found.append(node.lineno)
            case ast.Attribute(attr="st_mtime" | "st_ctime"):
                found.append(node.lineno)
            case ast.ImportFrom(module="time", names=names) if WALL_CLOCKS & {name.name for name in names}:
                found.append(node.lineno)
    return found


@pytest.mark.promise(7)
def test_no_module_of_ours_reads_a_wall_clock() -> None:
    found = {}
    for room in ("edgepfl", "device_agent", "coordinator"):
        for path in (ROOT / room).rglob("*.py"):
            if lines := wall_clocks(path.read_text("utf-8")):
                found[str(path.relative_to(ROOT))] = lines
    assert {path: lines for path, lines in found.items() if path not in ALLOWED} == {}


@pytest.mark.promise(7)
@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "from time import time",
        "import datetime\ndatetime.datetime.now()",
        "x.stat().st_mtime",
    ],
)
def test_the_search_finds_wall_clocks(source: str) -> None:
    assert wall_clocks(source)
