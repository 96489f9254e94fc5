"""Whose fault a failure is, by the code that a device gives it."""

from __future__ import annotations

BUNDLE = frozenset({"BundleError", "PlanError", "GraphFailed"})
"""A fault of what every device gets: the names of the errors of :mod:`edgepfl.errors` that loading or running gives."""

DOWNLOAD = "download"
"""The code of a failure that is ours: there is no download for a device."""

ROOM = "room"
"""The code of another: there is no room here for a device's upload, or it was lost here."""

SECAGG = "secagg"
"""The code of whoever is left out of a secure aggregation, because it came too late or was started anew."""

BLAMELESS = frozenset({"conditions", DOWNLOAD, ROOM, SECAGG})
"""The device is well: its battery is low, say, and it declines."""


def is_bundles(code: str) -> bool:
    """Whether other devices have to expect the same failure."""
    return code in BUNDLE


def is_devices(code: str) -> bool:
    """Whether a failure speaks against the device."""
    return code not in BLAMELESS
