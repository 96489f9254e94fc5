"""What an emulated device is: how fast, how connected, how much energy it has, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edgepfl.errors import ConfigError
from simulators.faults import Faults, Way

Kind: TypeAlias = Literal["host", "board", "phone", "wearable"]
Runtime: TypeAlias = Literal["onnx", "executorch"]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e15)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=1e15)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Name: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_.-]{0,62}\Z")]

REFERENCE = "one core of an Intel Core i7-12700, the 2500 points of Geekbench 6"
"""The machine that compute factors are relative to."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a number comes from.

    Attributes:
        source: a URL, or ``"estimate"``.
        what: what was measured there, or the reasoning of the estimate.
    """

    source: Annotated[str, Meta(pattern=r"\A(https?://\S+|estimate)\Z")]
    what: Annotated[str, Meta(min_length=8)]

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of device.  None is no limit, or no battery.

    Attributes:
        name: ``"pi-4"``.
        about: the hardware meant, for people.
        kind: host (the machine that emulates), board, phone or wearable.
        runtime: what it trains with.
        compute_factor: how many times longer a training step takes than on :data:`REFERENCE`.
        memory_mib: that programs can have, the system's own share left out.
        storage_mib: free on the disk of the agent's state.
        uplink: bytes a second.
        downlink: likewise.
        latency: seconds that a packet takes to the broker, one way.
        jitter: seconds that it takes longer at most.
        loss: probability that an MQTT message of QoS 0 is lost.
        battery_wh: energy of a full battery, in watt hours; None without a battery.
        watts_idle: of the whole device, waiting.
        watts_training: likewise, one core training.
        watts_transmitting: likewise, its radio at work.
        watts_use: drawn on top while its owner uses it.
        watts_charger: that its charger gives at most; None on mains without a battery.
        boot_seconds: from power to the agent's first packet.
        sources: of each number, by the field's name.
    """

    name: Name
    about: str
    kind: Kind = "board"
    runtime: Runtime = "onnx"
    compute_factor: Positive = 1.0
    memory_mib: Positive | None = None
    storage_mib: Positive | None = None
    uplink: Positive | None = None
    downlink: Positive | None = None
    latency: NotNegative = 0.0
    jitter: NotNegative = 0.0
    loss: Probability = 0.0
    battery_wh: Positive | None = None
    watts_idle: NotNegative = 0.0
    watts_training: NotNegative = 0.0
    watts_transmitting: NotNegative = 0.0
    watts_use: NotNegative = 0.0
    watts_charger: Positive | None = None
    boot_seconds: NotNegative = 0.0
    sources: Mapping[str, Source] = {}

    def __post_init__(self) -> None:
        if self.watts_idle > min(self.watts_training, self.watts_transmitting):
            raise ConfigError(
                "it draws less while it works than while it waits",
                where=f"profile {self.name}",
                remedy="Give watts_training and watts_transmitting of the whole device, waiting included",
            )
        if (self.battery_wh is None) != (self.watts_charger is None):
            raise ConfigError(
                "battery_wh and watts_charger come together",
                where=f"profile {self.name}",
                remedy="Give both for a device with a battery, neither for one on mains",
            )


NUMBERS: tuple[str, ...] = tuple(
    field.name
    for field in msgspec.structs.fields(DeviceProfile)
    if field.name not in {"name", "about", "kind", "runtime", "sources"}
)
"""The fields that carry a source, in order."""


def slowdown(profile: DeviceProfile, host: float = 1.0) -> float:
    """How many times longer the device takes for a step than the machine that emulates it; at least 1.

    Args:
        profile: the device's.
        host: the emulating machine's own compute factor; 1 where it is as fast as :data:`REFERENCE`.
    """
    return 1.0 if profile.kind == "host" else max(1.0, profile.compute_factor / host)


def network(profile: DeviceProfile) -> Faults:
    """The device's connection, for :class:`~simulators.faults.proxy.FaultProxy`."""
    delay = (profile.latency, profile.latency + profile.jitter)
    return Faults(
        up=Way(delay=delay, rate=profile.uplink or 0.0, drop=profile.loss),
        down=Way(delay=delay, rate=profile.downlink or 0.0, drop=profile.loss),
    )
