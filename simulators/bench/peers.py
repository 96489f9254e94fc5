"""One job in several systems on this machine: what a round costs in each, and whether they compute the same model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import simulators.bench.peer_programs as programs
from edgepfl.errors import EdgepflError, RunError
from edgepfl.seeds import generator
from simulators.bench.peer_programs import common
from simulators.bench.peer_programs.common import Job
from simulators.bench.peers_environment import Environment, python_of

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
"""A model by tensor."""

TOLERANCE = 1e-4
"""Relative to the greatest element of a tensor of the final model: what another order of additions may come to."""

TORCH = f"torch=={version('torch').partition('+')[0]}"
"""The same release for everybody, so that no difference is its doing."""

_PATIENCE = 1800  # seconds for one contestant
_TAIL = 3


@dataclass(frozen=True)
class Contestant:
    """Something that can do the job.

    Attributes:
        title: for people.
        kind: what it is.
        environment: of a peer; None for ours.
    """

    title: str
    kind: str
    environment: Environment | None = None


CONTESTANTS: Mapping[str, Contestant] = MappingProxyType(
    {
        "vmapped": Contestant("edgepfl simulate", "mathematics only, whole cohorts at once"),
        "agents": Contestant("edgepfl agents", "real agents, MQTT broker, coordinator, journal"),
        "flower": Contestant(
            "Flower",
            "simulator on Ray, one process a core",
            Environment(("flwr[simulation]==1.42.0", TORCH), (11, 12)),
        ),
        "blazefl": Contestant(
            "BlazeFL",
            "simulator, a pool of threads",
            Environment(("blazefl==2.0.3", TORCH, "numpy", "tqdm"), (12, 13)),
        ),
        "pfl": Contestant(
            "pfl-research", "simulator, one process", Environment(("pfl[pytorch]==0.6.0", TORCH), (11, 10))
        ),
    }
)
"""All that can be compared, by the name that ``--only`` takes."""


@dataclass(frozen=True)
class Row:
    """What one contestant came to.

    Attributes:
        name: of the contestant.
        start: seconds from nothing to the end of the first round: imports, processes, connections, graphs.
        seconds: of each further round.
        versions: of the packages that count.
        apart: the greatest difference of its final model from the first row's, relative to the greatest element.
        failure: why it has no numbers; empty where it has.
    """

    name: str
    start: float = 0.0
    seconds: tuple[float, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    apart: float = 0.0
    failure: str = ""

    @property
    def round_seconds(self) -> float:
        """The median of a round's seconds."""
        return median(self.seconds)

    @property
    def right(self) -> bool:
        """Whether it computed what the first row did."""
        return not self.failure and self.apart <= TOLERANCE


def prepare(job: Job, folder: Path, first: Weights) -> None:
    """Write the job, its data and its initial model, as the programs read them."""
    rng = generator(job.seed, "peers")
    patterns = rng.standard_normal((job.classes, job.inputs), dtype=np.float32)
    y = rng.integers(0, job.classes, (job.devices, job.batch))
    x = patterns[y] + rng.standard_normal((job.devices, job.batch, job.inputs), dtype=np.float32)
    (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
    np.savez(folder / "data.npz", x=x, y=y)
    np.savez(folder / "first.npz", **first)  # type: ignore[arg-type]  # tensors by name


def run(names: Sequence[str], folder: Path, tell: Callable[[str], None]) -> list[Row]:
    """Every contestant, one after the other; one that cannot be had, or fails, ends no comparison."""
    rows: list[Row] = []
    reference: Weights = {}
    for name in names:
        try:
            row = _measured(name, folder, tell)
        except EdgepflError as error:
            tell(f"{name}: {error}")
            rows.append(Row(name, failure=str(error)))
            continue
        with np.load(folder / f"{name}.npz") as model:
            final = {key: model[key] for key in model.files}
        reference = reference or final
        rows.append(replace(row, apart=_apart(final, reference)))
        tell(f"{name}: {row.round_seconds:.3f} s a round, model apart by {rows[-1].apart:.1e}")
    return rows


def _measured(name: str, folder: Path, tell: Callable[[str], None]) -> Row:
    """One contestant in a process of its own.

    Raises:
        RunError: it cannot be installed, or fails.
    """
    environment = CONTESTANTS[name].environment
    if environment is None:
        words = [sys.executable, "-m", "simulators.bench.peers_ours", name, str(folder)]
        place = Path.cwd()
    else:
        words = [str(python_of(name, environment, tell)), "-m", f"{programs.__name__}.with_{name}"]
        place = _copied(folder)
    tell(f"{name}: running ...")
    began = common.now()
    log = folder / f"{name}.log"
    with log.open("wb") as said:
        try:
            done = subprocess.run(  # noqa: S603  our own words
                words, cwd=place, env=_surroundings(folder), stdout=said, stderr=said, check=False, timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired as error:
            raise RunError(f"it was not done after {_PATIENCE} s", where=name, remedy="Ask for fewer rounds") from error
    if done.returncode or not (folder / f"{name}.json").exists():
        tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-_TAIL:])
        raise RunError(f"it failed: {tail[-600:]}", where=name)
    found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    stamps = found["stamps"]
    return Row(name, stamps[0] - began, tuple(b - a for a, b in pairwise(stamps)), found["versions"])


def _copied(folder: Path) -> Path:
    """The peers' programs alone, under their own names, where no other module of ours is found."""
    root = folder / "programs"
    source = Path(programs.__path__[0])
    place = root.joinpath(*programs.__name__.split("."))
    if not place.exists():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        for package in (root / "simulators", root / "simulators" / "bench"):
            (package / "__init__.py").touch()
    return root


def _surroundings(folder: Path) -> dict[str, str]:
    """Variables of a contestant's process: none calls home, and none takes more threads than it was given."""
    mine = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") and key != "VIRTUAL_ENV"}
    return {
        **mine,
        "EDGEPFL_PEERS_FOLDER": str(folder),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def _apart(final: Weights, reference: Weights) -> float:
    """The greatest difference of two models, relative to a tensor's greatest element; infinite for other tensors."""
    if final.keys() != reference.keys():
        return float("inf")
    return max(float(np.abs(final[key] - value).max() / np.abs(value).max()) for key, value in reference.items())
