"""The command ``edgepfl doctor``: whether this device computes what the exporter promised, and what it measures.

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
from math import inf, isfinite
from operator import itemgetter
from pathlib import Path

import numpy as np

from device_agent.conditions_report import checkup
from device_agent.config import RuntimeSettings
from device_agent.footprint import pss
from device_agent.runners import Array, Runner, repeat
from device_agent.runners.choice import choose
from edgepfl.bundle import Bundle, Golden, golden_vectors, unpack
from edgepfl.bus.conditions import add_options
from edgepfl.errors import BundleError, ConfigError, GraphFailed
from edgepfl.plan import Entry, Graph
from edgepfl.validation import convert, on_command_line

REPEATS = 10
"""Calls of each graph: a fault may come only with a later one."""

_POISON = -(2**62)  # far from any output, in float32 and in int64

_EPILOG = """\
examples:
  edgepfl doctor --bundle watch.bundle
  edgepfl doctor --bundle watch.bundle --runtime executorch --threads 4 --json
  edgepfl doctor                            # power, temperature, load, ... as a run's conditions see them
  edgepfl doctor --config agent.toml --require charging --require max_temperature=75

Give it the file that edgepfl export wrote.  The exit status is 0 where every graph gave its
numbers in each of ten calls, and 1 where one did not: then do not train on this device,
and report what this prints.  It is 2 where nothing could be checked.  Without a bundle it is
1 where a condition is unmet.
"""


@dataclass(frozen=True)
class Finding:
    """How one graph did.

    Attributes:
        graph: which.
        ok: whether every output was within its allowed error in every call.
        worst: the greatest error, in units of what is allowed; infinite where an output is not a number, or there is
            none.
        output: where it was.
        call: in which, from 1.
        us: microseconds of the fastest call; infinite where there was none.
        failure: why the runtime could not load or run it; empty where it could.
    """

    graph: str
    ok: bool
    worst: float
    output: str = ""
    call: int = 0
    us: float = inf
    failure: str = ""


def examine(bundle: Bundle, runner: Runner) -> Iterator[Finding]:
    """Repeat every golden call, as an agent repeats its steps.

    Args:
        bundle: with its golden vectors.
        runner: of this device.

    Raises:
        BundleError: a graph has no golden vectors, or another border than the plan's.
        CodecError: its golden vectors are not the graph's.
    """
    for entry, graph in bundle.plan.graphs.items():
        if entry not in bundle.golden:
            raise BundleError(
                "it has no golden vectors",
                where=f"graph {entry}",
                remedy="Take the file that edgepfl export wrote: what a coordinator sends on has none",
            )
        golden = golden_vectors(graph, bundle.golden[entry], where=f"golden {entry}")
        try:
            yield _examine(entry, graph, golden, runner)
        except GraphFailed as error:
            yield Finding(entry.value, ok=False, worst=inf, failure=str(error))


def _examine(entry: Entry, graph: Graph, golden: Golden, runner: Runner) -> Finding:
    feeds = [golden.feeds[port.name] for port in graph.inputs]
    call = repeat(runner, entry, graph)
    errors: list[tuple[float, str, int]] = []
    fastest = inf
    for number in range(1, REPEATS + 1):
        started = time.perf_counter()
        outputs = call(feeds)
        fastest = min(fastest, time.perf_counter() - started)
        for port, found in zip(graph.outputs, outputs, strict=True):
            errors.append((_error(found, golden, port.name), port.name, number))
            found.fill(_POISON)  # what a later call leaves out must not look right
    worst, output, number = max(errors, key=itemgetter(0))
    return Finding(entry.value, worst <= 1, worst, output, number, 1e6 * fastest)


def _error(found: Array, golden: Golden, name: str) -> float:
    """The greatest error of an output, in units of what is allowed."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.max(np.abs(found - golden.expected[name])))
    allowed = float(golden.allowed[name])
    if error == 0:
        return 0.0
    return error / allowed if isfinite(error) and allowed > 0 else inf


def main(arguments: Sequence[str]) -> int:
    """Run ``edgepfl doctor``.

    Raises:
        EdgepflError: the bundle or the runtime is not there or unusable.
    """
    words = _parser().parse_args(arguments)
    if words.bundle is None:
        return _check_up(words)
    if words.conditions is not None or words.require:
        raise ConfigError(
            "a bundle and conditions are two checks",
            where="--bundle",
            remedy="Leave out --bundle to have the conditions judged, or --conditions and --require to have it checked",
        )
    bundle = _read(words.bundle, words.runtime)
    choice = choose(_settings(words))
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


def _check_up(words: argparse.Namespace) -> int:
    found = checkup(words)
    print(json.dumps(found.plain, indent=1) if words.json else "\n".join(found.lines))
    return 1 if found.unmet else 0


def _read(file: Path, runtime: str) -> Bundle:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error.strerror})", where=str(file)) from error
    bundle = unpack(data, where=str(file))
    if runtime not in bundle.graphs:
        raise BundleError(
            f"it has no {runtime} graphs, only {', '.join(sorted(bundle.graphs)) or 'none'}",
            where=str(file),
            remedy=f"Export it with --runtimes {runtime}, or try another --runtime",
        )
    return bundle


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl doctor",
        description="Check on this device that a bundle's graphs compute what the exporter promised; or, without a "
        "bundle, show what the device measures of itself, and whether it meets a run's conditions.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bundle", type=Path, metavar="FILE", help="the bundle that edgepfl export wrote")
    add("--runtime", choices=("onnx", "executorch"), default="onnx", help="what runs the graphs (default: onnx)")
    add("--threads", type=int, default=1, metavar="N", help="threads inside one operator (default: 1)")
    add("--library", default="", metavar="FOLDER", help="of executorch: the folder that edgepfl build-runner made")
    add("--json", action="store_true", help="print the findings as JSON")
    add("--config", type=Path, metavar="FILE", help="without a bundle: agent.toml, for what it says of the device")
    add_options(parser)
    return parser


def _settings(words: argparse.Namespace) -> RuntimeSettings:
    given = {"kind": words.runtime, "threads": words.threads, "library": words.library}
    place = on_command_line("edgepfl doctor", {"kind": "--runtime"})
    return convert(given, RuntimeSettings, place, remedy="See edgepfl doctor --help")


def _plain(finding: Finding) -> dict[str, object]:
    """As JSON has it, which knows no infinity."""
    return {name: None if value == inf else value for name, value in asdict(finding).items()}


def _tell(findings: Sequence[Finding], about: Mapping[str, object]) -> None:
    print(", ".join(f"{name} {value}" for name, value in about.items() if value is not None))
    for each in findings:
        print(f"{'ok   ' if each.ok else 'WRONG'} {each.graph:<9} {_story(each)}")


def _story(finding: Finding) -> str:
    if finding.failure:
        return finding.failure
    place = f", {finding.output} in call {finding.call}" if finding.worst else ""
    return f"{finding.us:>10,.0f} us   error {finding.worst:.3f} of what is allowed{place}"
