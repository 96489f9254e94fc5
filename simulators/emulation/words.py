"""An emulation's report as a table for a terminal."""

from __future__ import annotations

from statistics import fmean

from simulators.emulation.report import EmulationReport
from simulators.report.charts import bytes_in_words
from simulators.report.table import as_text

_SHOWN = 5  # devices that are named


def table(report: EmulationReport) -> str:
    """What came of it, one figure a line."""
    trained = len(report.seconds)
    rows = [
        ("ended", f"{report.status}, {trained} rounds" + (f": {report.why}" if report.why else "")),
        ("seconds a round", f"{report.seconds_per_round:.3f}"),
        ("reports lost", str(report.lost)),
        ("attempts abandoned", str(report.abandoned)),
        ("bytes a round, coordinator", bytes_in_words(report.bytes_per_round)),
        ("bytes a round, each device", bytes_in_words(_of_device(report))),
        *((f"memory, {name}", f"{mib:.0f} MiB") for name, mib in report.pss_mib.items()),
        *_accuracies(report),
        *((f"refused, {reason}", str(count)) for reason, count in sorted(report.refused.items())),
    ]
    rows += [("never happened", each) for each in report.missed]
    if report.quarantined:
        rows.append(("left out after failures", _names(report.quarantined)))
    if report.doubled:
        rows.append(("names that two agents had", _names(tuple(report.doubled))))
    if report.joules:
        rows.append(("joules, a device", f"{fmean(report.joules.values()):.3g}"))
    head = (f"{report.agents} agents, {report.algorithm}, {report.model}", f"{report.time} time, {report.broker}")
    return as_text(head, rows)


def _of_device(report: EmulationReport) -> float:
    """Bytes of a device in a round, in the mean; in and out."""
    both = report.fleet_bytes_in + report.fleet_bytes_out
    return both / max(1, report.agents * report.rounds)


def _accuracies(report: EmulationReport) -> list[tuple[str, str]]:
    rows = []
    for model in report.accuracy:
        mean, worst = report.mean_of(model), report.worst_decile_of(model)
        rows.append((f"accuracy, {model}", f"{mean:.3f}, worst decile {worst:.3f}"))
    return rows


def _names(devices: tuple[str, ...]) -> str:
    rest = len(devices) - _SHOWN
    return ", ".join(devices[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
