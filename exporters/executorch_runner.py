"""ExecuTorch's official Python runtime as the check uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgepfl.errors import GraphFailed
from edgepfl.plan import Graph
from exporters.executorch import METHOD, PYBINDINGS, load, quiet

Arrays = Mapping[str, NDArray[Any]]

_HUGE = 1e30  # its products overflow, and what adds to it is off by far


class PoisonedExecutorch:
    """Runs one ExecuTorch program whose memory was filled with NaN, then with huge numbers, before every run.

    The runtime hands out no buffers to fill, so the program itself runs on such inputs first: then its outputs, its
    intermediate values and the delegate's workspace hold what follows from them.  A kernel that adds to what an
    earlier call left, or leaves a part unwritten, gives it away.

    Args:
        data: the program.
        ports: its border.

    Raises:
        GraphFailed: the runtime refuses the program, or its border is another one.
    """

    def __init__(self, data: bytes, ports: Graph) -> None:
        self._ports = ports
        with quiet():
            runtime = load(PYBINDINGS)
            runtime._unsafe_reset_threadpool(1)  # noqa: SLF001  the only way to ask for one thread
            try:
                # attributes die in this order: the method first, which uses the others
                self._method = runtime._load_program_from_buffer(data).load_method(METHOD)  # noqa: SLF001  its only entry
            except RuntimeError as error:
                raise GraphFailed(f"executorch refuses the program ({error})", remedy="Report it") from error
        self._data = data  # the runtime reads it in place
        self._same_border()

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """One run on these inputs, by port name, after the runs that poison."""
        inputs = [torch.from_numpy(np.array(feeds[port.name])) for port in self._ports.inputs]
        for poison in (torch.nan, _HUGE):
            self._execute([x.new_full(x.shape, poison) if x.is_floating_point() else x for x in inputs])
        outputs = self._execute(inputs)
        return {port.name: x.numpy() for port, x in zip(self._ports.outputs, outputs, strict=True)}

    def _execute(self, inputs: list[Tensor]) -> list[Tensor]:
        try:
            outputs: list[Tensor] = self._method(inputs)
        except RuntimeError as error:
            raise GraphFailed(f"executorch could not run the program ({error})", remedy="Report it") from error
        return outputs

    def _same_border(self) -> None:
        meta = self._method.method_meta()
        found = [
            *(tuple(meta.input_tensor_meta(i).sizes()) for i in range(meta.num_inputs())),
            *(tuple(meta.output_tensor_meta(i).sizes()) for i in range(meta.num_outputs())),
        ]
        declared = [port.spec.shape for port in (*self._ports.inputs, *self._ports.outputs)]
        if found != declared:
            raise GraphFailed(f"the program's border is {found}, declared {declared}", remedy="Report it")
