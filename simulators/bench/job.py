"""What is measured, and on what: no torch, so that a process of its own shows what a device would need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

Step: TypeAlias = Callable[[], float]
"""Takes one training step, from where the last one ended; gives the loss before it."""


@dataclass(frozen=True)
class Job:
    """A training step.

    Attributes:
        model: a name in :data:`simulators.bench.models.MODELS`.
        batch: rows of the minibatch.
        threads: that one operator may use.
        bundle: the exported graphs.
    """

    model: str
    batch: int
    threads: int
    bundle: Path


@dataclass(frozen=True)
class Contestant:
    """Something that takes steps.

    Attributes:
        title: for people.
        maker: ``module:function``, which makes a :data:`Step` of a :class:`Job`; imported only when it is needed.
        graphs: the kind of graphs that the bundle must have, of :data:`simulators.bench.graphs.KINDS`; none for plain
            torch.
    """

    title: str
    maker: str
    graphs: str = ""

    def step(self, job: Job) -> Step:
        """Make the step.

        Raises:
            ImportError: a package that it needs is not installed.
            EdgepflError: it cannot take the step here.
        """
        module, _, function = self.maker.partition(":")
        made: Step = getattr(importlib.import_module(module), function)(job)
        return made


CONTESTANTS: Mapping[str, Contestant] = MappingProxyType(
    {
        "eager": Contestant("torch eager", "simulators.bench.ordinary:eager"),
        "compile": Contestant("torch.compile", "simulators.bench.ordinary:compiled"),
        "onnx": Contestant("onnxruntime", "simulators.bench.exported:onnx", "onnx"),
        "executorch": Contestant("ExecuTorch XNNPACK", "simulators.bench.exported:executorch", "executorch"),
        "executorch-portable": Contestant("ExecuTorch portable", "simulators.bench.exported:executorch", "portable"),
    }
)
"""All that can be measured, by the name that ``--runners`` takes."""
