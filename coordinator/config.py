"""Settings of the coordinator's service and of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from coordinator.privacy.config import Privacy
from coordinator.rounds import selected
from coordinator.storage import location
from edgepfl.bus import settings
from edgepfl.bus.settings import Broker
from edgepfl.bus.transfer import Transfer
from edgepfl.eligibility import Conditions
from edgepfl.topics import check_name

Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 31)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
MOST_SELECTED = 2000
Devices: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_SELECTED)]  # more would not fit into one Task and one Commit
Duration: TypeAlias = Annotated[float, Meta(gt=0, le=1e7)]  # seconds
Norm: TypeAlias = Annotated[float, Meta(gt=0, le=1e30)]


class AggregatorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That ``edgepfl aggregator`` does the mathematics, over the shared store.

    Attributes:
        again: seconds after which an order that is not done is repeated.
    """

    again: Duration = 10.0


class TransferTable(Transfer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How blobs are transferred: see :class:`~edgepfl.bus.transfer.Transfer`; its quota is that of the uploads.

    Attributes:
        under_way_mib: of uploads that are asked for at once; the others wait their turn.
    """

    under_way_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = 16


class CoordinatorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``coordinator.toml`` may say.

    Attributes:
        fleet: the fleet's name, as in the agents' settings.
        broker: how to reach the broker.
        state: the directory that holds everything the coordinator must not forget.
        device: where uploads are folded: ``cpu`` or ``cuda``.
        hubs: devices that are hubs, and the most devices that each may report for.
        store: URL of the store that aggregators share, see :mod:`coordinator.storage.location`; empty: nobody does.
        aggregator: see :class:`AggregatorTable`; without it the coordinator does the mathematics itself.
        transfer: see :class:`TransferTable`.
    """

    fleet: str
    broker: Broker
    state: str = "coordinator-state"
    device: Literal["cpu", "cuda"] = "cpu"
    hubs: dict[str, Devices] = {}
    store: str = ""
    aggregator: AggregatorTable | None = None
    transfer: TransferTable = TransferTable()

    def __post_init__(self) -> None:
        if self.aggregator is not None and not self.store:
            raise ValueError("[aggregator] needs a store, which the aggregators share")
        if self.aggregator is not None and self.hubs:
            raise ValueError("aggregators fold single uploads, and hubs send sums: leave out hubs or [aggregator]")


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is to do.

    Attributes:
        name: for people; the run's id adds a random suffix.
        rounds: training rounds; a last one that only evaluates follows.
        steps: minibatch steps a round and device.
        goal: reports that a round takes, and without ``over`` the devices to select for it; at most 2000.
        over: how many times ``goal`` devices are selected: the round ends with the first ``goal`` reports, and the rest
            are released.  Which reports count then depends on which come first.
        minimum: reports below which a round is abandoned.
        gather: seconds to wait for ``goal`` devices once ``minimum`` are here.
        deadline: seconds a round may take.
        lease: seconds without a sign of life until a device is asked again, then given up.
        canary: the part of the first round's cohort that gets the task first; the others wait until these have shown
            that the bundle loads and steps.  0 gives it to all at once.
        halt_failures: the part of those who have the task above which faults of the bundle end the run.
        quarantine_after: failures in a row after which a device is left out for some rounds.
        quarantine_rounds: how many rounds that are, for the first time; twice as many each further time.
        attempts: abandoned attempts at one round after which the run fails.
        seed: of everything random.
        evaluate_every: rounds between evaluations on the devices; 0 evaluates only at the end.
        tune_steps: steps of fine-tuning before an evaluation, for algorithms that tune.
        max_examples: a report that claims more is refused: examples are the weight of an upload.
        max_norm: an upload with a slot of greater Euclidean norm is refused.
        patience: seconds of training after which a slow device's part counts as it is; 0 waits for all its steps.
        hyper: hyperparameters that differ from the bundle's.
        decay: factors by which runtime hyperparameters change with each round, such as ``{"lr": 0.998}``.
        exact: sum uploads exactly, so that the result is that of a run whose devices report through hubs.
        robust: how means are kept from a few wild devices, such as ``median`` or ``krum:2``: see
            :func:`coordinator.robust.rule_of`.
        server_optimizer: what the server adds in place of the mean change, such as ``fedadam:lr=0.1``: see
            :func:`coordinator.optimisers.optimiser_of`.
        buffer: reports that make an update while ``goal`` devices are at work all the time, each on the state that it
            was given: buffered-asynchronous training.  0 for rounds that wait for everyone they selected.
        staleness: what a report weighs that comes so many updates late, such as ``polynomial:0.5``: see
            :func:`coordinator.staleness.weighting_of`.
        max_staleness: updates after which a report is not taken any more; it bounds the downloads that are kept.
        codec: how devices encode their uploads, such as ``int8`` or ``topk:0.05+int8+zstd``: see
            :mod:`edgepfl.coding`; empty for raw tensors.
        conditions: what a device must be before and while it trains; None asks nothing.
        secagg: whether devices mask their uploads, so that the coordinator sees their sum alone: see docs/secagg.md.
        secagg_clip: the greatest magnitude of a number of an upload under secure aggregation.
        secagg_neighbours: with how many others each device exchanges masks; 0 for as many as dropouts ask for.
        privacy: how much the run may tell of any one device, see docs/privacy.md; None bounds nothing.
    """

    name: str = "run"
    rounds: Positive = 20
    steps: Positive = 10
    goal: Devices = 2
    over: Annotated[float, Meta(ge=1, le=10)] = 1.0
    minimum: Devices = 1
    gather: Duration = 10.0
    deadline: Duration = 3600.0
    lease: Duration = 60.0
    attempts: Positive = 5
    canary: Annotated[float, Meta(ge=0, le=1)] = 0.05
    halt_failures: Annotated[float, Meta(ge=0, le=1)] = 0.2
    quarantine_after: Positive = 3
    quarantine_rounds: Natural = 5
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    evaluate_every: Natural = 5
    tune_steps: Natural = 10
    max_examples: Positive = 1_000_000
    max_norm: Norm = 1e6
    patience: Annotated[float, Meta(ge=0, le=1e7)] = 0.0
    hyper: dict[str, float | str] = {}
    decay: dict[str, Annotated[float, Meta(gt=0, le=10)]] = {}
    exact: bool = False
    robust: str = ""
    server_optimizer: str = ""
    buffer: Annotated[int, Meta(ge=0, le=MOST_SELECTED)] = 0
    staleness: Annotated[str, Meta(max_length=64)] = "polynomial:0.5"
    max_staleness: Natural = 100
    codec: Annotated[str, Meta(max_length=64)] = ""
    conditions: Conditions | None = None
    secagg: bool = False
    secagg_clip: Annotated[float, Meta(ge=1e-9, le=1e12)] = 1024.0
    secagg_neighbours: Annotated[int, Meta(ge=0, le=254)] = 0
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if self.minimum > self.goal:
            raise ValueError(f"minimum ({self.minimum}) is above goal ({self.goal})")
        if self.buffer > self.goal:
            raise ValueError(f"buffer ({self.buffer}) is above goal ({self.goal}), the devices at work at any time")
        if 0 < self.buffer < self.minimum:
            raise ValueError(f"minimum ({self.minimum}) is above buffer ({self.buffer}), the reports of an update")
        if self.buffer and self.over > 1:
            raise ValueError("over is for rounds that wait for all: with buffer no device is waited for")
        if self.selected > MOST_SELECTED:
            raise ValueError(f"goal ({self.goal}) times over ({self.over:g}) is above {MOST_SELECTED} devices")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.hyper.values()):
            raise ValueError("a hyperparameter is not finite")

    @property
    def selected(self) -> int:
        """How many devices to select for a round."""
        return selected(self.goal, self.over)


def check_hubs(hubs: Iterable[str], where: str) -> None:
    """Refuse names that no device can have, so that a slip of the pen does not pass for a hub that stays away.

    Raises:
        ConfigError: one of them is such a name.
    """
    for hub in hubs:
        check_name(hub, where)


def load(path: Path) -> CoordinatorConfig:
    """The settings in a TOML file; paths in it are relative to it.

    Raises:
        ConfigError: unreadable, not TOML, or a key or value that may not be there.
    """
    config = settings.read(path, CoordinatorConfig)
    check_name(config.fleet, f"{path}, fleet")
    check_hubs(config.hubs, f"{path}, hubs")
    folder = path.absolute().parent
    broker = settings.broker_in(config.broker, folder, f"{path}, broker")
    return msgspec.structs.replace(
        config,
        broker=broker,
        state=settings.anchored(config.state, folder),
        store=location.anchored(config.store, f"{path}, store", folder),
    )
