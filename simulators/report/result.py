"""What a demo found, as a record; and the JSON that other programs may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean

from simulators.report.summary import summary

MODELS: Mapping[str, str] = {
    "local": "local only",
    "global": "global model",
    "personal": "personal model",
}
"""The models a device may be judged with, in the order of tables, and how people call them."""


@dataclass(frozen=True)
class Point:
    """One evaluation of the whole fleet; None where an algorithm has no such model.

    Attributes:
        round: after which it was made; 0 is before the first.
        global_accuracy: mean over the devices, of the global model on each one's test examples.
        personal_accuracy: likewise, of each device's personal model.
        train_loss: mean over the devices, on the examples they train on.
    """

    round: int
    global_accuracy: float | None = None
    personal_accuracy: float | None = None
    train_loss: float | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes of one round, counted at the sockets: MQTT's own packets and acknowledgements too.

    Attributes:
        device_down: to one device, mean over the devices.
        device_up: from one device, likewise.
        coordinator_out: published by the coordinator; the broker fans it out.
        coordinator_in: received by it.
    """

    device_down: float
    device_up: float
    coordinator_out: float
    coordinator_in: float


@dataclass(frozen=True)
class DemoResult:
    """All that the report shows.

    Attributes:
        seed: everything follows from it.
        algorithm: by its name.
        data: the data set's name.
        rounds: committed.
        accuracy: test accuracy by model (a key of :data:`MODELS`), then device; 0 to 1.
        curve: in the order of the rounds.
        traffic: one for each round; the first holds the graphs, which cross once.
        seconds: wall time by phase, over the whole demo.
        seconds_per_round: mean wall time.
        pss_mib: proportional set size, MiB, of the ``"coordinator"`` and of one ``"agent"`` in its own process.
        versions: of what took part.
        model_sha256: digest of the server's final state.
        personal_sha256: digest of what every device keeps for itself (its KEEP slots) at the end.
    """

    seed: int
    algorithm: str
    data: str
    rounds: int
    accuracy: Mapping[str, Mapping[str, float]]
    curve: tuple[Point, ...]
    traffic: tuple[Traffic, ...]
    seconds: Mapping[str, float]
    seconds_per_round: float
    model_sha256: str
    personal_sha256: str = ""
    pss_mib: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """The models there are accuracies of, in the order of :data:`MODELS`."""
        return tuple(model for model in MODELS if self.accuracy.get(model))

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that any model was judged on, by name."""
        return tuple(sorted({device for model in self.models for device in self.accuracy[model]}))


def mean_traffic(traffic: tuple[Traffic, ...]) -> dict[str, float]:
    """Bytes per round, mean over the rounds, by the names of :class:`Traffic`; empty without rounds."""
    rows = [asdict(each) for each in traffic]
    return {name: fmean(row[name] for row in rows) for name in rows[0]} if rows else {}


def as_json(result: DemoResult) -> dict[str, object]:
    """What ``edgepfl demo --json`` writes; these names stay.  A model that an algorithm does not have is null."""
    accuracy = {
        model: {**_figures(result.accuracy[model]), "devices": dict(result.accuracy[model])}
        if result.accuracy.get(model)
        else None
        for model in MODELS
    }
    return {
        "seed": result.seed,
        "algorithm": result.algorithm,
        "data": result.data,
        "rounds": result.rounds,
        "accuracy": accuracy,
        "seconds_per_round": result.seconds_per_round,
        "bytes": mean_traffic(result.traffic),
        "pss_mib": dict(result.pss_mib),
        "versions": dict(result.versions),
        "model_sha256": result.model_sha256,
        "personal_sha256": result.personal_sha256,
        "curve": [asdict(point) for point in result.curve],
        "seconds": dict(result.seconds),
    }


def _figures(accuracy: Mapping[str, float]) -> dict[str, float]:
    found = summary(accuracy.values())
    return {"mean": found.mean, "worst_decile": found.worst_decile, "best": found.best}
