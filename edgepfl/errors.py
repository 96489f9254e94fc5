"""Every error that edgepfl raises on purpose.

::

    EdgepflError
    ├── ConfigError        a setting, a command-line value or a file of settings
    ├── DataError          a device's own data: missing, misshapen, not finite
    ├── PlanError          an algorithm, slot or plan that contradicts itself
    ├── ExportError        a model or algorithm that cannot become a graph
    │   └── GraphMismatch  a graph that ran and gave other numbers than the eager function
    ├── BundleError        a bundle that is damaged, too big or of another protocol
    ├── GraphFailed        a graph that its runtime could not load or run
    ├── CodecError         tensors that are not what was declared
    ├── WireError          a message that is not one of ours, too big or malformed
    ├── TransferError      a blob whose chunks or digest do not match
    ├── BusError           the transport: no broker, refused, gone
    ├── StoreError         the device's or the coordinator's own storage
    └── RunError           a run that cannot start, continue or be found

Each says what happened, where, and what to do about it.
"""

from __future__ import annotations


class EdgepflError(Exception):
    """Something went wrong that a person can act on.

    Args:
        what: what happened, a sentence without its full stop.
        where: the file, topic, tensor or setting it happened at.
        remedy: what to do about it, an imperative sentence.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f". {self.remedy}" if self.remedy else ""
        return f"{place}{self.what}{cure}"


class ConfigError(EdgepflError):
    """A setting, a command-line value or a file of settings is wrong."""


class DataError(EdgepflError):
    """A device's own data is missing, misshapen or not finite."""


class PlanError(EdgepflError):
    """An algorithm, slot or plan contradicts itself."""


class ExportError(EdgepflError):
    """A model or algorithm cannot become a graph."""


class GraphMismatch(ExportError):
    """A graph ran and gave other numbers than the eager function."""


class BundleError(EdgepflError):
    """A bundle is damaged, too big or of another protocol."""


class GraphFailed(EdgepflError):
    """A graph could not be loaded or run by its runtime."""


class CodecError(EdgepflError):
    """Tensors are not what was declared."""


class WireError(EdgepflError):
    """A message is not one of ours, too big or malformed."""


class TransferError(EdgepflError):
    """A blob's chunks or digest do not match."""


class BusError(EdgepflError):
    """The transport failed: no broker, refused, gone."""


class StoreError(EdgepflError):
    """The device's or the coordinator's own storage failed."""


class RunError(EdgepflError):
    """A run cannot start, continue or be found."""
