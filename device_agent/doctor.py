"""The command ``edgepfl doctor``: whether this device computes what the exporter promised.

A bundle holds golden vectors, one checked call of each graph.  They are repeated here, on this processor with this
runtime, and compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from device_agent.config import RuntimeSettings
from device_agent.footprint import pss
from device_agent.runners import Runner
from device_agent.runners.choice import choose
from edgepfl.bundle import Bundle, Golden, golden_vectors, unpack
from edgepfl.errors import BundleError, ConfigError
from edgepfl.plan import Entry

REPEATS = 10
"""Calls of each graph: a fault may come only with the second."""

_EPILOG = """\
examples:
  edgepfl doctor --bundle watch.bundle
  edgepfl doctor --bundle watch.bundle --runtime executorch --threads 4 --json

Give it the file that edgepfl export wrote.  The exit status is 0 where every graph gave its
numbers in each of ten calls, and 1 where one did not: then do not train on this device,
and report the line with the versions.
"""


@dataclass(frozen=True)
class Finding:
    """How one graph did.

    Attributes:
        graph: which.
        ok: whether every output was within its allowed error in every call.
        worst: the greatest error, in units of what is allowed; infinite where an output is not a number.
        output: where it was.
        us: microseconds of the fastest call.
    """

    graph: str
    ok: bool
    worst: float
    output: str
    us: float


def examine(bundle: Bundle, runner: Runner) -> Iterator[Finding]:
    """Repeat every golden call.

    Args:
        bundle: with its golden vectors.
        runner: of this device.

    Raises:
        BundleError: a graph has no golden vectors, or other ones.
        GraphFailed: the runtime cannot load or run a graph.
    """
    for entry, graph in bundle.plan.graphs.items():
        if entry not in bundle.golden:
            raise BundleError(
                "it has no golden vectors",
                where=f"graph {entry}",
                remedy="Take the file that edgepfl export wrote: what a coordinator sends on has none",
            )
        yield _examine(entry, golden_vectors(graph, bundle.golden[entry], where=f"golden {entry}"), runner)


def _examine(entry: Entry, golden: Golden, runner: Runner) -> Finding:
    worst, output, fastest = -1.0, "", float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = runner.run(entry, golden.feeds)
        fastest = min(fastest, time.perf_counter() - started)
        for name, wanted in golden.expected.items():
            error = float(np.max(np.abs(found[name] - wanted))) / float(golden.allowed[name])
            error = error if np.isfinite(error) else float("inf")
            if error > worst:
                worst, output = error, name
    return Finding(entry.value, worst <= 1, worst, output, 1e6 * fastest)


def main(arguments: Sequence[str]) -> int:
    """Run ``edgepfl doctor``.

    Raises:
        EdgepflError: the bundle or the runtime is not there or unusable.
    """
    words = _parser().parse_args(arguments)
    try:
        data = words.bundle.read_bytes()
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error.strerror})", where=str(words.bundle)) from error
    bundle = unpack(data, where=str(words.bundle))
    runtimes = ", ".join(sorted(bundle.graphs))
    if words.runtime not in bundle.graphs:
        raise BundleError(f"it has no {words.runtime} graphs, only {runtimes}", where=str(words.bundle))
    choice = choose(RuntimeSettings(kind=words.runtime, threads=words.threads, library=words.library))
    findings = list(examine(bundle, choice.runner(bundle)))
    ok = all(finding.ok for finding in findings)
    about = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "runtime": choice.version,
        "threads": words.threads,
        "pss_mib": None if (size := pss()) is None else round(size / 2**20, 1),
    }
    if words.json:
        json.dump({"ok": ok, **about, "graphs": [_plain(each) for each in findings]}, sys.stdout, indent=1)
        print()
    else:
        _tell(findings, about)
    return 0 if ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl doctor",
        description="Check on this device that a bundle's graphs compute what the exporter promised.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bundle", type=Path, required=True, metavar="FILE", help="the bundle that edgepfl export wrote")
    add("--runtime", choices=("onnx", "executorch"), default="onnx", help="what runs the graphs (default: onnx)")
    add("--threads", type=int, default=1, metavar="N", help="threads inside one operator (default: 1)")
    add("--library", default="", metavar="FOLDER", help="of executorch: the folder that edgepfl build-runner made")
    add("--json", action="store_true", help="print the findings as JSON")
    return parser


def _plain(finding: Finding) -> dict[str, object]:
    """As JSON has it, which knows no infinity."""
    return {**asdict(finding), "worst": finding.worst if np.isfinite(finding.worst) else None}


def _tell(findings: Sequence[Finding], about: Mapping[str, object]) -> None:
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for each in findings:
        verdict = "ok   " if each.ok else "WRONG"
        print(
            f"{verdict} {each.graph:<9} {each.us:>10,.0f} us   error {each.worst:.3f} of what is allowed, {each.output}"
        )
