"""edgepfl: personalised federated learning on real devices, over MQTT.

This package is what the coordinator and the devices agree on.
"""

from __future__ import annotations

from edgepfl.bundle import Bundle
from edgepfl.errors import EdgepflError
from edgepfl.plan import PROTOCOL, Plan
from edgepfl.tree import Tree

__all__ = ["PROTOCOL", "Bundle", "EdgepflError", "Plan", "Tree", "__version__"]

__version__ = "0.1.0"
