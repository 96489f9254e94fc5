"""The fleet in virtual time: the same coordinator and the same agents, a day of fleet life in seconds.

:func:`simulate` runs one; see docs/virtual-time.md.
"""

from simulators.virtual.records import Cost, Entry, Incident, Settings, Simulated, VirtualDevice
from simulators.virtual.simulate import simulate

__all__ = ["Cost", "Entry", "Incident", "Settings", "Simulated", "VirtualDevice", "simulate"]
