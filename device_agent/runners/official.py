"""Graphs on ExecuTorch's own Python runtime: the fallback where the native library is not built.

It imports torch, which costs a device 350 MiB and 6 seconds; nothing else in this package does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np

from device_agent.runners import Array, positional
from device_agent.runners.bundled import graph_of, require_graphs
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError, GraphFailed
from edgepfl.plan import Entry, Graph

_BINDINGS = "executorch.extension.pybindings.portable_lib"
_METHOD = "forward"
_DTYPES = {4: "int64", 6: "float32"}  # ExecuTorch's own numbers


def installed() -> bool:
    """Whether it could be imported; imports nothing."""
    return all(importlib.util.find_spec(name) is not None for name in ("executorch", "torch"))


def version() -> str:
    """What it is, for people and for checkpoints; imports nothing."""
    try:
        number = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:  # from a folder of sources
        number = "of no known version"
    return f"executorch's Python runtime {number}"


class OfficialRunner:
    """Runs a bundle's ExecuTorch graphs through ExecuTorch's Python runtime.

    Args:
        bundle: with ExecuTorch graphs.
        threads: threads inside one operator, the same for all graphs of a process.

    Raises:
        BundleError: the bundle has no ExecuTorch graphs.
        ConfigError: executorch or torch cannot be imported.
    """

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        require_graphs(bundle, positional.RUNTIME)
        self._bundle = bundle
        self._bindings, self._torch = _imported(_BINDINGS), _imported("torch")
        if self._bindings._threadpool_get_thread_count() != threads:  # noqa: SLF001  there is no public way
            self._bindings._unsafe_reset_threadpool(threads)  # noqa: SLF001  likewise
        self._loaded: dict[Entry, tuple[Any, Graph]] = {}
        self._lock = Lock()  # the runtime's modules are for one thread at a time

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See :meth:`device_agent.runners.Runner.run`."""
        with self._lock:
            if entry not in self._loaded:
                self._loaded[entry] = self._load(entry)
            module, graph = self._loaded[entry]
            arrays = positional.ordered(entry, graph.inputs, feeds)
            try:
                given = [self._torch.tensor(array) for array in arrays]  # copies: the runtime may keep them
                results = module.run_method(_METHOD, given)
            except Exception as error:  # the runtime's exceptions have no common base of their own
                raise _failed(entry, "could not run it", error) from error
            return {port.name: np.array(result.numpy()) for port, result in zip(graph.outputs, results, strict=True)}

    def _load(self, entry: Entry) -> tuple[Any, Graph]:
        graph, data = graph_of(self._bundle, positional.RUNTIME, entry)
        thorough = self._bindings.Verification.InternalConsistency
        try:
            module = self._bindings._load_for_executorch_from_buffer(data, program_verification=thorough)  # noqa: SLF001  likewise
            meta = module.method_meta(_METHOD)
        except Exception as error:  # likewise
            raise _failed(entry, "could not load it", error) from error
        inputs = [_kind(meta.input_tensor_meta(i)) for i in range(meta.num_inputs())]
        outputs = [_kind(meta.output_tensor_meta(i)) for i in range(meta.num_outputs())]
        positional.check_border(f"graph {entry}, inputs", inputs, graph.inputs)
        positional.check_border(f"graph {entry}, outputs", outputs, graph.outputs)
        return module, graph


def _imported(module: str) -> Any:  # noqa: ANN401  a module without type information
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is experimental
            return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module.partition('.')[0]} cannot be imported ({error})",
            where="runtime executorch",
            remedy="Build the native library, which needs neither, with: edgepfl build-runner",
        ) from error


def _kind(meta: Any) -> positional.Kind:  # noqa: ANN401  likewise
    number = int(meta.dtype())
    return _DTYPES.get(number, f"ExecuTorch's type {number}"), tuple(meta.sizes())


def _failed(entry: Entry, what: str, error: Exception) -> GraphFailed:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    remedy = "Run edgepfl export again, or report this with the bundle"
    return GraphFailed(f"ExecuTorch {what} ({reason})", where=f"graph {entry}", remedy=remedy)
