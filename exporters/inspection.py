"""The command ``edgepfl inspect``: what a bundle holds, and what runs where."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from edgepfl.bundle import Bundle, unpack
from edgepfl.errors import BundleError, ConfigError
from edgepfl.plan import Plan
from exporters.executorch_nodes import nodes

_EPILOG = """\
examples:
  edgepfl inspect watch.bundle
  edgepfl inspect watch.bundle --operators
  edgepfl inspect watch.bundle --json

Of ONNX graphs every operator runs on onnxruntime's CPU kernels.  Of ExecuTorch programs those
that are "delegated" run on XNNPACK, which is fast, and the others on portable kernels, which
are simple and slow: a large product there is worth a question.
"""


@dataclass(frozen=True)
class GraphReport:
    """One graph on one runtime.

    Attributes:
        runtime: the runtime.
        graph: the entry.
        bytes: of the file.
        constants: bytes of the numbers in it, of an ONNX graph; None where the file does not tell.
        operators: where each operator runs ("cpu", "xnnpack", "portable"), and how often it occurs.
        delegates: pieces that XNNPACK was given; None on another runtime.
    """

    runtime: str
    graph: str
    bytes: int
    constants: int | None
    operators: Mapping[str, Mapping[str, int]]
    delegates: int | None = None

    def count(self, place: str) -> int:
        """How many operators run there."""
        return sum(self.operators.get(place, {}).values())


def reports(bundle: Bundle) -> list[GraphReport]:
    """A report of every graph of every runtime.

    Raises:
        BundleError: a graph is not what its runtime's folder promises.
    """
    reporters = {"onnx": _onnx, "executorch": _executorch}
    return [
        reporters[runtime](entry.value, data)
        for runtime, graphs in sorted(bundle.graphs.items())
        for entry, data in graphs.items()
    ]


def _onnx(graph: str, data: bytes) -> GraphReport:
    try:
        model = onnx.load_from_string(data)
    except Exception as error:  # protobuf's errors have no common base
        raise BundleError(f"not an ONNX model ({error})", where=f"onnx graph {graph}") from error
    operators = Counter(node.op_type for node in model.graph.node)
    constants = sum(tensor.ByteSize() for tensor in model.graph.initializer)
    return GraphReport("onnx", graph, len(data), constants, {"cpu": dict(sorted(operators.items()))})


def _executorch(graph: str, data: bytes) -> GraphReport:
    try:
        found = nodes(data)
    except ConfigError as error:
        raise BundleError(error.what, where=f"executorch graph {graph}") from error
    places = {"xnnpack": found.delegated, "portable": found.portable}
    return GraphReport("executorch", graph, len(data), None, places, found.delegates)


def main(arguments: Sequence[str]) -> int:
    """Run ``edgepfl inspect``.

    Raises:
        EdgepflError: the file is not there, or no bundle.
    """
    words = _parser().parse_args(arguments)
    try:
        data = words.bundle.read_bytes()
    except OSError as error:
        raise ConfigError(f"it cannot be read ({error.strerror})", where=str(words.bundle)) from error
    bundle = unpack(data, where=str(words.bundle))
    found = reports(bundle)
    if words.json:
        about = {"bytes": len(data), "algorithm": bundle.plan.algorithm, "title": bundle.plan.title}
        json.dump({**about, "slots": _slots(bundle.plan), "graphs": [asdict(each) for each in found]}, sys.stdout)
        print()
        return 0
    _tell(bundle, found, len(data))
    if words.operators:
        _tell_operators(found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl inspect",
        description="Tell what a bundle holds: slots, graphs, and which operators run where.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, metavar="FILE", help="the bundle that edgepfl export wrote")
    parser.add_argument("--operators", action="store_true", help="name the operators of each graph")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _slots(plan: Plan) -> dict[str, dict[str, object]]:
    """Each slot's role and size."""
    return {
        name: {"role": slot.role.value, "bytes": sum(spec.nbytes for spec in slot.tensors.values())}
        for name, slot in plan.slots.items()
    }


def _tell(bundle: Bundle, found: Sequence[GraphReport], size: int) -> None:
    plan = bundle.plan
    inputs = " and ".join(f"{spec.dtype}{list(spec.shape)}" for spec in plan.batch.x)
    target = f"{plan.batch.y.dtype}{list(plan.batch.y.shape)}"
    print(f"{plan.algorithm} on {plan.title}: {inputs} -> {target}, minibatches of {plan.batch.size}, {size:,} bytes")
    for name, slot in _slots(plan).items():
        print(f"  slot {name:<10} {slot['role']:<6} {slot['bytes']:>12,} bytes")
    print(f"{'runtime':<11}{'graph':<10}{'bytes':>9}{'operators':>11}{'delegated':>11}{'portable':>10}{'pieces':>8}")
    for each in found:
        every = sum(each.count(place) for place in each.operators)
        xnnpack, portable, pieces = (
            (f"{each.count('xnnpack'):,}", f"{each.count('portable'):,}", f"{each.delegates:,}")
            if each.delegates is not None
            else ("", "", "")
        )
        print(f"{each.runtime:<11}{each.graph:<10}{each.bytes:>9,}{every:>11,}{xnnpack:>11}{portable:>10}{pieces:>8}")


def _tell_operators(found: Sequence[GraphReport]) -> None:
    for each in found:
        for place, operators in each.operators.items():
            listed = ", ".join(
                f"{name} {count}" for name, count in sorted(operators.items(), key=lambda item: -item[1])
            )
            print(f"{each.runtime} {each.graph} on {place}: {listed or 'nothing'}")
