"""``hub.toml``: what a hub is told by its owner.

::

    fleet = "shed"                          # of its own devices
    state = "hub-state"                     # paths are relative to this file
    minimum = 3                             # reports below which it tells its parent that it cannot

    [broker]                                # its devices'
    url = "mqtt://localhost:1883"

    [parent]
    fleet = "farm"
    device = "shed"                         # what the parent calls this hub; its coordinator lists it under hubs

    [parent.broker]
    url = "mqtts://broker.example:8883"
    username = "shed"
    password_file = "broker.password"

    [nested]                                # optional, with rounds: pFedMac's three levels
    mu = 0.02
    lr = 5.0
    step = 0.1
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from coordinator.config import Devices, Duration, Norm, Positive, RunConfig, check_hubs
from edgepfl.bus.settings import Broker, anchored, broker_in, read
from edgepfl.errors import ConfigError
from edgepfl.topics import check_name

Together: TypeAlias = Annotated[int, Meta(ge=1, le=500)]  # one report names them all, with their metrics


class Parent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[parent]``.

    Attributes:
        fleet: the parent's fleet.
        broker: how to reach its broker.
        device: what the hub is called there; a relay needs no name.
    """

    fleet: str
    broker: Broker
    device: str = ""


class NestedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[nested]``: see :class:`coordinator.hub.levels.Nested`."""

    mu: float
    lr: float
    step: float


class HubConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; after :func:`load` its paths are absolute.

    Attributes:
        fleet: the fleet of its own devices.
        broker: how to reach their broker.
        parent: whom it reports to.
        state: the directory that holds everything the hub must not forget.
        relay: pass every device through to the parent instead of summing up.
        rounds: of its own in one of the parent's, where it trains a model of its own; 0 sums up single rounds.
        nested: the nested form of such a model.
        goal: devices to select for a round, at most 500.
        minimum: reports below which it tells the parent that it cannot.
        gather: seconds to wait for devices that it knows, once ``minimum`` are here.
        deadline: seconds that its round may take, if half of the parent's deadline is not shorter.
        lease: seconds without a sign of life until a device is asked again, then given up.
        max_examples: a report that claims more is refused.
        max_norm: an upload with a slot of greater Euclidean norm is refused.
        hubs: devices that are hubs themselves, and the most devices that each may report for.
    """

    fleet: str
    broker: Broker
    parent: Parent
    state: str = "hub-state"
    relay: bool = False
    rounds: Annotated[int, Meta(ge=0, le=1000)] = 0
    nested: NestedSettings | None = None
    goal: Together = 500
    minimum: Together = 1
    gather: Duration = 5.0
    deadline: Duration = 3600.0
    lease: Duration = 60.0
    max_examples: Positive = 1_000_000
    max_norm: Norm = 1e6
    hubs: dict[str, Devices] = {}

    def __post_init__(self) -> None:
        if self.minimum > self.goal:
            raise ValueError(f"minimum ({self.minimum}) is above goal ({self.goal})")
        if self.nested is not None and self.rounds == 0:
            raise ValueError("nested needs rounds, 1 or more")
        if self.relay and (self.rounds or self.hubs):
            raise ValueError("a relay has neither rounds nor hubs of its own")

    @property
    def rounds_as(self) -> RunConfig:
        """How its rounds are; a task of the parent says the rest."""
        names = ("goal", "minimum", "gather", "deadline", "lease", "max_examples", "max_norm")
        return RunConfig(**{name: getattr(self, name) for name in names})


def load(path: Path) -> HubConfig:
    """The settings in a file.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown, missing, of the wrong type or impossible.
    """
    config, folder = read(path, HubConfig), path.absolute().parent
    check_name(config.fleet, f"{path}, fleet")
    check_name(config.parent.fleet, f"{path}, parent.fleet")
    check_hubs(config.hubs, f"{path}, hubs")
    if not config.relay:
        check_name(config.parent.device, f"{path}, parent.device")
    own = broker_in(config.broker, folder, f"{path}, broker")
    above = broker_in(config.parent.broker, folder, f"{path}, parent.broker")
    if (config.fleet, own.url) == (config.parent.fleet, above.url):
        raise ConfigError(
            "it would be its own parent",
            where=f"{path}, parent.fleet",
            remedy="Give its devices a fleet or a broker of their own",
        )
    replace = msgspec.structs.replace
    parent = replace(config.parent, broker=above)
    return replace(config, broker=own, parent=parent, state=anchored(config.state, folder))
