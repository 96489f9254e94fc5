"""Report files: what stays of a fleet when its test is over."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import msgspec

from simulators.emulation.page import write_html
from simulators.emulation.report import EmulationReport

LONGEST = 120  # of a folder's name, in characters
LAST_LINES = 30


def fleet_name(folder: Path) -> str:
    """A fleet's name that no other has: tests share a broker, and sessions may."""
    return f"test-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"


def folder_for(artifacts: Path, test: str) -> Path:
    """The folder of a test's files, in which nothing is yet.

    Args:
        artifacts: the folder of all tests.
        test: its node id.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", test).strip("-")[-LONGEST:]
    number = 1
    while True:
        found = artifacts / (plain if number == 1 else f"{plain}-{number}")
        try:
            found.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return found


def write(report: EmulationReport, folder: Path, logs: Path) -> Path:
    """Write a report, and what the processes logged.

    Args:
        report: what came of a fleet.
        folder: exists.
        logs: the folder with the logs.

    Returns:
        The report's JSON file.
    """
    path = folder / "report.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    write_html(report, folder / "report.html")
    for log in sorted(logs.glob("*.log")):
        if log.parent != folder:
            shutil.copyfile(log, folder / log.name)
    return path


def ending(log: Path, title: str) -> str:
    """The last lines of a log, for people."""
    lines = log.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
    return "\n".join([f"{title} ends with:", *(f"  {line}" for line in lines or ["(nothing)"])])
