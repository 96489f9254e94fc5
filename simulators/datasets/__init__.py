"""Data sets for a simulated fleet, and the data plug-in ``simulators.datasets:device`` of a stand-alone agent."""

from simulators.datasets._base import FleetData, OnDemand, device_names
from simulators.datasets.drift import Drift
from simulators.datasets.registry import DATASETS, device, load

__all__ = ["DATASETS", "Drift", "FleetData", "OnDemand", "device", "device_names", "load"]
