"""ONNX Runtime as the check uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgepfl.errors import GraphFailed
from edgepfl.plan import Graph

Arrays = Mapping[str, NDArray[Any]]


class PoisonedOnnx:
    """Runs one ONNX graph in output buffers that hold NaN before every run.

    Args:
        data: the graph.
        ports: its border.

    Raises:
        GraphFailed: the runtime refuses the graph, or its border is another one.
    """

    def __init__(self, data: bytes, ports: Graph) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's errors have no common public class
            raise GraphFailed(f"onnxruntime refuses the graph ({error})", remedy="Report it") from error
        self._outputs = {port.name: np.empty(port.spec.shape, np.float32) for port in ports.outputs}
        self._same_border(ports)

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """One run; the outputs are views of buffers that the next run overwrites."""
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array).reshape(array.shape))
        for name, buffer in self._outputs.items():
            buffer.fill(np.nan)
            binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # likewise
            raise GraphFailed(f"onnxruntime could not run the graph ({error})", remedy="Report it") from error
        return self._outputs

    def _same_border(self, ports: Graph) -> None:
        found = [value.name for value in (*self._session.get_inputs(), *self._session.get_outputs())]
        declared = [port.name for port in (*ports.inputs, *ports.outputs)]
        if found != declared:
            raise GraphFailed(f"the graph's border is {found}, declared {declared}", remedy="Report it")
