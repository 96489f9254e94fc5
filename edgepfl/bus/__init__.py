"""The transport between coordinator and devices, behind one interface: MQTT or, in tests, a loopback.

The only part of ``edgepfl`` that does I/O.
"""

from __future__ import annotations

from edgepfl.bus._base import Arrived, Bus, Connected, Disconnected, Event, Traffic, Will

__all__ = ["Arrived", "Bus", "Connected", "Disconnected", "Event", "Traffic", "Will"]
