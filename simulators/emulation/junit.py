"""What a scenario expected and what came, as a JUnit file, which every CI system shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from simulators.emulation.report import EmulationReport


def write_junit(report: EmulationReport, failures: Sequence[str], seconds: float, path: Path) -> None:
    """Write the file: one suite with one test, which fails with all that came otherwise than expected.

    Args:
        report: what came of the scenario.
        failures: what of it was not expected.
        seconds: that it took.
        path: of the file.

    Raises:
        OSError: it cannot be written.
    """
    suite = ET.Element(
        "testsuite", name="edgepfl emulate", tests="1", failures=str(int(bool(failures))), time=f"{seconds:.3f}"
    )
    case = ET.SubElement(suite, "testcase", classname="scenario", name=report.scenario, time=f"{seconds:.3f}")
    if failures:
        failure = ET.SubElement(case, "failure", message=failures[0].splitlines()[0])
        failure.text = "\n".join(failures)
    ET.SubElement(case, "system-out").text = f"seed {report.seed}, run {report.run}: {report.status} {report.why}"
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
