"""What a device's owner gets of what the device keeps of him: open formats, described in the folder itself.

::

    FOLDER/README.md               what is what, and how to open it
    FOLDER/about.json              device, fleet, data, runs; size and SHA-256 of each file
    FOLDER/data.npz                the examples that the agent trains on and tests with
    FOLDER/runs/RUN/model.safetensors   the model that predicts on this device
    FOLDER/runs/RUN/personal.safetensors   the settled personal state
    FOLDER/runs/RUN/report.json    the report that waits for the coordinator's word, if one does
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from device_agent.config import AgentConfig
from device_agent.data import Examples, named
from device_agent.models import Owned
from edgepfl import wire
from edgepfl.bus._files import make_directory
from edgepfl.errors import ConfigError, WireError
from edgepfl.wire import Report

FORMAT = 1
"""Of ``about.json``; another number means that its fields have other meanings."""

_README = """# What this device keeps of you

`about.json` says whose this is, what data the device trains on, how far each run has come, and the size and SHA-256
digest of every file here.

- `data.npz`: your examples. `numpy.load("data.npz")` gives `train_x`, `train_y`, `test_x`, `test_y`, each example a row
  (`train_x0`, `train_x1`, ... where the model has several inputs).
- `runs/RUN/model.safetensors`: your own model, each parameter under the name it has in the model.
  `safetensors.numpy.load_file(FILE)` reads it; in PyTorch
  `model.load_state_dict(safetensors.torch.load_file(FILE), strict=False)`.
- `runs/RUN/personal.safetensors`: what the algorithm keeps on this device alone, as SLOT/TENSOR.
- `runs/RUN/report.json`: what was sent, or will be, and is not answered yet: numbers, and the update's size and digest.

Safetensors files are described at https://github.com/huggingface/safetensors, .npz files at
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class File:
    """One file to be written.

    Attributes:
        path: relative to the folder.
        data: what it holds.
    """

    path: str
    data: bytes


def contents(config: AgentConfig, examples: Examples, runs: Iterable[Owned]) -> list[File]:
    """All files of the folder.

    Args:
        config: the agent's settings; nothing of the broker's is told.
        examples: the device's data.
        runs: what its store has of each.
    """
    runs = list(runs)
    arrays = dict(_arrays(examples))
    files = [File("data.npz", _npz(arrays)), *(file for run in runs for file in _files_of(run))]
    about = {
        "format": FORMAT,
        "device": config.device,
        "fleet": config.fleet,
        "data": {
            "source": config.data.source,
            "arrays": {name: {"shape": x.shape, "dtype": str(x.dtype)} for name, x in arrays.items()},
        },
        "settings": {"runtime": config.runtime, "work": config.work, "transfer": config.transfer},
        "runs": {
            run.run: {"settled_round": run.settled if run.settled >= 0 else None, "folder": _folder(run.run)}
            for run in runs
        },
        "files": {file.path: {"bytes": len(file.data), "sha256": sha256(file.data).hexdigest()} for file in files},
    }
    return [File("README.md", _README.encode()), File("about.json", _json(about)), *files]


def write(folder: Path, files: Iterable[File]) -> None:
    """Make the folder, readable by its owner alone.

    Raises:
        ConfigError: it is there already, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
        for file in files:
            path = folder / file.path
            make_directory(path.parent, 0o700)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(file.data)
    except FileExistsError:
        raise ConfigError("it is there already", where=str(folder), remedy="Give a new folder") from None
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(folder)) from error


def _files_of(run: Owned) -> Iterator[File]:
    folder = _folder(run.run)
    if run.model is not None:
        yield File(f"{folder}/model.safetensors", run.model)
    if run.personal is not None:
        yield File(f"{folder}/personal.safetensors", run.personal)
    if run.report is not None:
        yield File(f"{folder}/report.json", _json(_told(run.report)))


def _folder(run: str) -> str:
    """Where a run's files are: its name comes from a message, and must not lead out of the folder."""
    return f"runs/{run if _PLAIN.fullmatch(run) else sha256(run.encode()).hexdigest()}"


def _told(report: bytes) -> dict[str, Any]:
    """What a waiting report says, its update by size and digest."""
    try:
        message = wire.decode(report, where="outbox")
    except WireError:
        message = None
    if not isinstance(message, Report):
        return {"bytes": len(report), "written_by": "another version of this agent"}
    upload = message.upload
    return {
        "round": message.round,
        "attempt": message.attempt,
        "examples": message.examples,
        "steps": message.steps,
        "metrics": dict(message.metrics),
        "seconds": dict(message.seconds),
        "update": None if upload is None else {"bytes": upload.size, "sha256": upload.sha256},
    }


def _arrays(examples: Examples) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    yield from named("train_x", examples.train_x)
    yield "train_y", examples.train_y
    yield from named("test_x", examples.test_x)
    yield "test_y", examples.test_y


def _npz(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return out.getvalue()


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
