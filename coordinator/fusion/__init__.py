"""Engines that keep FPFC's pairs in less memory than two vectors for each; all give the same models.

=========  =============================================================  ============================================
engine     keeps                                                          for
=========  =============================================================  ============================================
naive      ``theta`` and ``v`` of every pair                              comparison
lean       a vector for each pair that is not flat                        few devices, or well separated clusters
history    uploads, for as long as a pair's dual refers to them           many devices, few rounds
potential  a vector for each device, and for each pair that has parted    rounds in which every device takes part
hybrid     what history keeps, then what lean keeps                       everything; the usual choice
=========  =============================================================  ============================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from coordinator.fusion.history import History
from coordinator.fusion.hybrid import Hybrid
from coordinator.fusion.lean import Lean
from coordinator.fusion.naive import Naive
from coordinator.fusion.potential import Potential
from edgepfl.algorithms import Algorithm
from edgepfl.algorithms._fusion import Opening
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.errors import ConfigError

ENGINES: Mapping[str, Opening] = MappingProxyType(
    {"naive": Naive, "lean": Lean, "history": History, "potential": Potential, "hybrid": Hybrid}
)
"""All engines by name."""


def _with(opening: Opening) -> type[FPFC]:
    """FPFC with another engine, by the same name: others tell an algorithm by its class's name and module."""
    return type(FPFC.__name__, (FPFC,), {"opening": opening, "__module__": FPFC.__module__, "__doc__": FPFC.__doc__})


_KINDS: Mapping[str, type[FPFC]] = {name: _with(opening) for name, opening in ENGINES.items()}


def with_engine(algorithm: Algorithm, name: str = "hybrid") -> Algorithm:
    """FPFC with its server's pairs kept by an engine; any other algorithm as it is.

    Raises:
        ConfigError: there is no such engine.
    """
    if name not in _KINDS:
        raise ConfigError(f"there is no engine {name!r}", where="fusion", remedy=f"Choose one of {', '.join(_KINDS)}")
    if not isinstance(algorithm, FPFC):
        return algorithm
    own = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(FPFC)}
    return _KINDS[name](**own)
