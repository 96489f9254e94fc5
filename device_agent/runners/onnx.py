"""Graphs on stock ONNX Runtime.

A board has little memory and other work to do, so nothing is left to the runtime's defaults: no arena (it grows to the
largest round and never shrinks), no thread that spins while the agent waits, and as many threads as were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
import onnxruntime

from device_agent.runners import Array, Call
from device_agent.runners.bundled import graph_of, require_graphs
from device_agent.runners.repeated import Repeated
from edgepfl.bundle import Bundle
from edgepfl.errors import BundleError, GraphFailed
from edgepfl.plan import Entry, Graph, Port

RUNTIME = "onnx"
"""The runtime's name in bundles and in Hello."""

_ERRORS_ONLY = 3
_PROVIDERS = ["CPUExecutionProvider"]
_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64"}

onnxruntime.set_default_logger_severity(_ERRORS_ONLY)


@dataclass(frozen=True)
class OnnxSettings:
    """How ONNX Runtime uses the machine.

    Attributes:
        threads: threads inside one operator.
        spin: let idle threads burn the processor for a little less latency.
    """

    threads: int = 1
    spin: bool = False


class _Loaded:
    """One graph, loaded and checked against the plan."""

    def __init__(self, entry: Entry, session: onnxruntime.InferenceSession, graph: Graph) -> None:
        self.entry = entry
        self.session = session
        self.graph = graph
        self.outputs: list[str] = [output.name for output in session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        try:
            results: list[Array] = self.session.run(self.outputs, feeds)
        except Exception as error:  # the runtime's exceptions have no common base of their own
            raise _failed(self.entry, error, f", given {_shapes(feeds)}") from error
        return dict(zip(self.outputs, results, strict=True))


class _Binding:
    """See :class:`device_agent.runners.repeated.Binding`."""

    def __init__(self, loaded: _Loaded, outputs: Sequence[Array]) -> None:
        self._loaded = loaded
        self._names = [port.name for port in loaded.graph.inputs]
        self._places = loaded.session.io_binding()
        for port, array in zip(loaded.graph.outputs, outputs, strict=True):
            kind = array.dtype.type
            self._places.bind_output(port.name, "cpu", 0, kind, array.shape, array.ctypes.data)

    def put(self, index: int, array: Array) -> None:
        self._places.bind_cpu_input(self._names[index], array)

    def run(self) -> None:
        try:
            self._loaded.session.run_with_iobinding(self._places)
        except Exception as error:  # likewise
            raise _failed(self._loaded.entry, error) from error


class OnnxRunner:
    """Runs a bundle's ONNX graphs; a session is made when its graph is first needed.

    Raises:
        BundleError: the bundle has no ONNX graphs.
    """

    def __init__(self, bundle: Bundle, settings: OnnxSettings | None = None) -> None:
        require_graphs(bundle, RUNTIME)
        self._bundle = bundle
        self._settings = settings or OnnxSettings()
        self._loaded: dict[Entry, _Loaded] = {}
        self._lock = Lock()

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See :meth:`device_agent.runners.Runner.run`."""
        return self._of(entry).run(feeds)

    def repeat(self, entry: Entry) -> Call:
        """See :meth:`device_agent.runners.Repeating.repeat`."""
        loaded = self._of(entry)
        return Repeated(entry, loaded.graph, partial(_Binding, loaded))

    def _of(self, entry: Entry) -> _Loaded:
        return self._loaded.get(entry) or self._load(entry)

    def _load(self, entry: Entry) -> _Loaded:
        with self._lock:
            if entry not in self._loaded:
                self._loaded[entry] = self._checked(entry)
            return self._loaded[entry]

    def _checked(self, entry: Entry) -> _Loaded:
        graph, data = graph_of(self._bundle, RUNTIME, entry)
        try:
            session = onnxruntime.InferenceSession(data, _options(self._settings), providers=_PROVIDERS)
        except Exception as error:  # likewise
            raise GraphFailed(
                f"ONNX Runtime {onnxruntime.__version__} could not load it ({_first_line(error)})",
                where=f"graph {entry}",
                remedy="Install the onnxruntime that the bundle was exported for",
            ) from error
        _check_border(f"graph {entry}, inputs", session.get_inputs(), graph.inputs)
        _check_border(f"graph {entry}, outputs", session.get_outputs(), graph.outputs)
        return _Loaded(entry, session, graph)


def _options(settings: OnnxSettings) -> onnxruntime.SessionOptions:
    spin = str(int(settings.spin))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False  # plans one block from the first run; without an arena it gains nothing
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", spin)
    options.add_session_config_entry("session.inter_op.allow_spinning", spin)
    return options


def _check_border(where: str, found: list[onnxruntime.NodeArg], ports: tuple[Port, ...]) -> None:
    actual = {arg.name: (_DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in found}
    planned = {port.name: (port.spec.dtype, port.spec.shape) for port in ports}
    for name in sorted(actual.keys() | planned.keys()):
        if actual.get(name) != planned.get(name):
            raise BundleError(
                f"port {name!r} is {_show(actual.get(name))} in the graph and {_show(planned.get(name))} in the plan",
                where=where,
                remedy="Export the bundle again",
            )


def _show(port: tuple[str, tuple[object, ...]] | None) -> str:
    return "missing" if port is None else f"{port[0]}{list(port[1])}"


def _failed(entry: Entry, error: Exception, given: str = "") -> GraphFailed:
    return GraphFailed(
        f"ONNX Runtime could not run it ({_first_line(error)}){given}",
        where=f"graph {entry}",
        remedy="Run edgepfl export again, or report this with the bundle",
    )


def _shapes(feeds: Mapping[str, Array]) -> str:
    return ", ".join(f"{name}: {np.asarray(array).dtype}{list(np.shape(array))}" for name, array in feeds.items())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
