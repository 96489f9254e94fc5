"""Data sets for a simulated fleet, and the data plug-in ``simulators.datasets:device`` of a stand-alone agent."""

from simulators.datasets._base import FleetData
from simulators.datasets.registry import DATASETS, device, load

__all__ = ["DATASETS", "FleetData", "device", "load"]
