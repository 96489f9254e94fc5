"""The graphs' functions run by torch, eagerly: what the graphs are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgepfl.algorithms import Algorithm
from edgepfl.plan import Entry, Port
from exporters.binding import Binding
from exporters.entries import entry_functions
from exporters.model import Model

Arrays = Mapping[str, NDArray[Any]]
"""Port name to array."""


class EagerRunner:
    """Runs an algorithm's device functions with torch's own operators and gradients.

    Args:
        algorithm: the algorithm.
        model: the model.
        dtype: ``torch.float64`` for a reference that is more exact than any graph.
    """

    def __init__(self, algorithm: Algorithm, model: Model, *, dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype
        self.functions = entry_functions(Binding(algorithm, model))

    def run(self, entry: Entry, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """The outputs of one graph.

        Args:
            entry: which graph.
            feeds: its inputs by port name; those that the graph does not read may be absent.

        Returns:
            Its outputs by port name, in the runner's dtype.
        """
        function = self.functions[entry]
        values = {port.name: self._tensor(port, feeds.get(port.name)) for port in function.inputs}
        return {port.name: tensor.detach().numpy().copy() for port, tensor in function.call(values)}

    def _tensor(self, port: Port, array: NDArray[Any] | None) -> torch.Tensor:
        dtype = torch.int64 if port.spec.dtype == "int64" else self._dtype
        if array is None:
            return torch.zeros(port.spec.shape, dtype=dtype)
        return torch.from_numpy(np.array(array)).to(dtype)
