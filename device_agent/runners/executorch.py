"""Graphs on ExecuTorch, through a small native library: no torch in the process.

Parameters are read where they lie and written where they go, so a step copies none of them: the exporter leaves a
graph's inputs and outputs out of its memory plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from device_agent.runners import Array, Call, positional, trial
from device_agent.runners.bundled import graph_of, require_graphs
from device_agent.runners.library import Border, Library, Program, default_folder
from device_agent.runners.repeated import Repeated
from edgepfl.bundle import Bundle
from edgepfl.errors import GraphFailed
from edgepfl.plan import Entry, Graph


@dataclass(frozen=True)
class ExecutorchSettings:
    """How ExecuTorch uses the machine.

    Attributes:
        threads: threads inside one operator; if more than one, the same number in the whole process, and they wait
            for work spinning, for a short while.
        folder: of the library, as ``edgepfl build-runner`` made it.
    """

    threads: int = 1
    folder: Path = field(default_factory=default_folder)


class _Loaded:
    """One graph, loaded and checked against the plan."""

    def __init__(self, entry: Entry, program: Program, graph: Graph) -> None:
        where = f"graph {entry}"
        positional.check_border(f"{where}, inputs", _kinds(program.inputs), graph.inputs)
        positional.check_border(f"{where}, outputs", _kinds(program.outputs), graph.outputs)
        self.entry = entry
        self.graph = graph
        self._program = program
        self._empty = [(port.name, port.spec.shape, np.dtype(port.spec.dtype)) for port in graph.outputs]
        self._lock = Lock()

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        inputs = positional.ordered(self.entry, self.graph.inputs, feeds)
        outputs = {name: np.empty(shape, dtype) for name, shape, dtype in self._empty}
        self.run_at([_address(array) for array in inputs], [_address(array) for array in outputs.values()])
        return outputs

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run it on these addresses."""
        try:
            with self._lock:
                self._program.run(inputs, outputs)
        except GraphFailed as error:
            raise _at(self.entry, error, "could not run it") from error


class _Binding:
    """See :class:`device_agent.runners.repeated.Binding`."""

    def __init__(self, loaded: _Loaded, outputs: Sequence[Array]) -> None:
        self._loaded = loaded
        self._reads = [0] * len(loaded.graph.inputs)
        self._writes = [_address(array) for array in outputs]

    def put(self, index: int, array: Array) -> None:
        self._reads[index] = _address(array)

    def run(self) -> None:
        self._loaded.run_at(self._reads, self._writes)


class ExecutorchRunner:
    """Runs a bundle's ExecuTorch graphs; each is loaded when it is first needed, after a trial in another process.

    Raises:
        BundleError: the bundle has no ExecuTorch graphs.
        ConfigError: the library is not built.
    """

    def __init__(self, bundle: Bundle, settings: ExecutorchSettings | None = None) -> None:
        require_graphs(bundle, positional.RUNTIME)
        self._settings = settings or ExecutorchSettings()
        self._bundle = bundle
        self._library = Library(self._settings.folder)
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
                graph, data = graph_of(self._bundle, positional.RUNTIME, entry)
                trial.attempt(self._library.step, data, f"graph {entry}")
                try:
                    program = self._library.load(data, self._settings.threads)
                except GraphFailed as error:
                    raise _at(entry, error, "could not load it") from error
                self._loaded[entry] = _Loaded(entry, program, graph)
            return self._loaded[entry]


def _at(entry: Entry, error: GraphFailed, what: str) -> GraphFailed:
    """The library's error with its place."""
    remedy = "Run edgepfl export again, or report this with the bundle"
    return GraphFailed(f"ExecuTorch {what} ({error.what})", where=f"graph {entry}", remedy=remedy)


def _kinds(borders: tuple[Border, ...]) -> list[positional.Kind]:
    return [(border.dtype, border.shape) for border in borders]


def _address(array: Array) -> int:
    # NumPy's own way takes five times as long, which counts in a step of 100 microseconds, but reads what is read-only.
    return addressof(c_char.from_buffer(array.data)) if array.flags.writeable else array.ctypes.data
