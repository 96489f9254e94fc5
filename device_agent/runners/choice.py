"""Which runner an agent uses.  Only its runtime is imported: another one would be memory for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from device_agent.config import RuntimeSettings
from device_agent.runners import Runner, official
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from device_agent.runners.library import NAME, REMEDY, Library, default_folder
from device_agent.runners.positional import RUNTIME
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A runtime to work with.

    Attributes:
        runtime: its name in bundles and in Hello.
        runner: makes the runner of a bundle.
        version: of what runs the graphs, for people and for checkpoints.
    """

    runtime: str
    runner: Callable[[Bundle], Runner]
    version: str


def choose(settings: RuntimeSettings) -> Choice:
    """The runtime that the settings name.

    Raises:
        ConfigError: it is not installed or not built.
    """
    return _executorch(settings) if settings.kind == "executorch" else _onnx(settings)


def _onnx(settings: RuntimeSettings) -> Choice:
    onnx = import_module("device_agent.runners.onnx")
    how = onnx.OnnxSettings(threads=settings.threads, spin=settings.spin)
    version = f"onnxruntime {import_module('onnxruntime').__version__}"
    return Choice(onnx.RUNTIME, lambda bundle: onnx.OnnxRunner(bundle, how), version)


def _executorch(settings: RuntimeSettings) -> Choice:
    folder = Path(settings.library) if settings.library else default_folder()
    if settings.library or (folder / NAME).exists():
        how = ExecutorchSettings(settings.threads, folder)
        version = Library(folder).version
        return Choice(RUNTIME, lambda bundle: ExecutorchRunner(bundle, how), version)
    if not official.installed():
        raise ConfigError("there is no ExecuTorch library", where=str(folder / NAME), remedy=REMEDY)
    log.warning(
        "there is no ExecuTorch library in %s, so graphs run on ExecuTorch's Python runtime, which needs torch and "
        "350 MiB of memory. %s",
        folder,
        REMEDY,
    )
    return Choice(RUNTIME, lambda bundle: official.OfficialRunner(bundle, settings.threads), official.version())
