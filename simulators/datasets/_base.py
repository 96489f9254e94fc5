"""What every data set gives: a fleet's examples, each device's apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from simulators.datasets.drift import Drift, Drifting, drifting

LEAST_DIGITS = 3  # of a device's number in its name


class OnDemand(Mapping[str, Examples]):
    """Devices whose examples are made anew at each access, and held by nobody: a fleet of any size needs no memory.

    Args:
        names: of the devices, in their order.
        make: a device's examples from its number, counted from 0; the same each time.
    """

    def __init__(self, names: Sequence[str], make: Callable[[int], Examples]) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self._make = make

    def __getitem__(self, name: str) -> Examples:
        return self._make(self._numbers[name])

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


@dataclass(frozen=True)
class FleetData:
    """The examples of a whole fleet, and what a model for them must look like.

    Attributes:
        name: the data set's name in the registry.
        devices: each device's own examples by its name, in the order of the names; many data sets make them anew at
            each access, so hold what you use again.  With ``drift`` they are :class:`Drifting`: those of round 0.
        input_shape: of one example, ``(6, 100)`` or ``(64,)``.
        classes: names of the classes; ``y`` holds their indices.
        model: the model that suits the data, by its name in ``exporters``.
        drift: how the data change with the round; None: not at all.
    """

    name: str
    devices: Mapping[str, Examples]
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    model: str
    drift: Drift | None = None

    def examples(self, device: str, round_: int = 0) -> Examples:
        """What a device trains and is tested on in a round: a pure function of both.

        Raises:
            KeyError: there is no such device.
        """
        return self.devices[device].of_round(round_)

    def mapped(self, change: Callable[[int, Examples], Examples]) -> FleetData:
        """The same fleet, with each device's examples changed: ``change`` has the device's number and its examples."""
        names = tuple(self.devices)
        before = self.devices
        return replace(self, devices=OnDemand(names, lambda number: change(number, before[names[number]])))

    def with_drift(self, drift: Drift, seed: int) -> FleetData:
        """The same fleet, whose data change with the round."""
        classes = len(self.classes)

        def change(number: int, examples: Examples) -> Examples:
            return Drifting.of(examples, lambda round_: drifting(drift, examples, classes, number, round_, seed))

        return replace(self.mapped(change), drift=drift)


def device_names(devices: int) -> tuple[str, ...]:
    """``device-000`` and so on; with as many digits as the last one needs, so that their order is that of the numbers.

    Raises:
        ConfigError: there is no device.
    """
    if devices < 1:
        raise ConfigError(f"{devices} devices are no fleet", where="data", remedy="Ask for 1 or more")
    digits = max(LEAST_DIGITS, len(str(devices - 1)))
    return tuple(f"device-{number:0{digits}}" for number in range(devices))
