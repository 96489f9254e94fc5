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
    ├── IdentityError      two devices that have one name
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

    Attributes:
        status: what a command that it ends exits with.
    """

    status = 2

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
    """A message is not one of ours, too big or malformed.

    Args:
        what: as of every error.
        where: likewise.
        remedy: likewise.
        reason: one or two words by which refused messages are counted.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "", reason: str = "invalid") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.reason = reason


class TransferError(EdgepflError):
    """A blob's chunks or digest do not match."""


class BusError(EdgepflError):
    """The transport failed: no broker, refused, gone."""


class StoreError(EdgepflError):
    """The device's or the coordinator's own storage failed.

    Args:
        what: as of every error.
        where: likewise.
        remedy: likewise.
        full: there is no room; nothing was changed, and it can be tried again when there is.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "", full: bool = False) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.full = full


class IdentityError(EdgepflError):
    """Two devices have one name: a person must tell them apart, and starting again helps nobody."""

    status = 3


class RunError(EdgepflError):
    """A run cannot start, continue or be found."""
