"""Fleets that may be too big for memory: a device's examples are asked for when its turn comes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan

REMEMBERED = 1024
"""Devices whose examples stay in memory, those that were asked for last."""


class Fitted:
    """Devices' examples in the shapes of a plan, those asked for last kept in memory.

    Args:
        devices: the fleet.
        plan: whose minibatches they go into.
        most: devices to remember.
    """

    def __init__(self, devices: Mapping[str, Examples], plan: Plan, most: int = REMEMBERED) -> None:
        self._devices = devices
        self._plan = plan
        self._most = most
        self._known: OrderedDict[str, Examples] = OrderedDict()

    def __getitem__(self, device: str) -> Examples:
        """A device's examples.

        Raises:
            ConfigError: the fleet has no such device.
            DataError: its examples do not fit the plan.
        """
        found = self._known.pop(device, None)
        if found is None:
            if device not in self._devices:
                raise ConfigError(f"the fleet has no device {device!r}", where="cohort")
            found = self._devices[device].fit(self._plan)
        self._known[device] = found
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found
