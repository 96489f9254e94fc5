"""MQTT topics, built and parsed here and nowhere else.

::

    edgepfl/1/FLEET/up/DEVICE/KIND           a device writes: hello, gone, report, failed, progress, stopped, need,
                                             secagg
    edgepfl/1/FLEET/up/DEVICE/blob/SHA16.K   a device writes: chunk K of one of its blobs
    edgepfl/1/FLEET/down/DEVICE/KIND         one device reads: task, commit, need, cancel, rollcall, refused, secagg
    edgepfl/1/FLEET/all/KIND                 every device reads: task, commit, rollcall
    edgepfl/1/FLEET/blob/SHA16/K             whoever asked reads: chunk K of a blob
    edgepfl/1/FLEET/server/down/KIND         the aggregators read: order
    edgepfl/1/FLEET/server/up/KIND           the aggregators write, and the coordinator reads: done, here

At most seven levels, so that brokers with AWS's limits carry them.  A device may write only under its own ``up/``, and
needs nothing below ``server/``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgepfl.errors import ConfigError
from edgepfl.plan import PROTOCOL

ROOT = f"edgepfl/{PROTOCOL}"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,34}[a-z0-9])?")
_SHA16 = re.compile(r"[0-9a-f]{16}")
_KIND = re.compile(r"[a-z]{1,16}")
_INDEX = re.compile(r"0|[1-9][0-9]{0,6}")  # one spelling for one chunk
_MOST_CHUNKS = 1 << 20


def check_name(name: str, what: str) -> str:
    """``name``, if it may be a fleet's or a device's: also a legal client id and certificate name.

    Raises:
        ConfigError: it may not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a name",
            where=what,
            remedy="Use 1 to 36 of a-z, 0-9 and '-', starting and ending with a letter or digit",
        )
    return name


@dataclass(frozen=True)
class FromDevice:
    """A message that a device wrote."""

    device: str
    kind: str


@dataclass(frozen=True)
class ToDevice:
    """A message for one device."""

    device: str
    kind: str


@dataclass(frozen=True)
class ToAll:
    """A message for every device."""

    kind: str


@dataclass(frozen=True)
class Chunk:
    """A chunk of a blob; ``device`` is its sender, or empty when the coordinator sent it."""

    sha16: str
    index: int
    device: str = ""


@dataclass(frozen=True)
class FromAggregator:
    """A message that the aggregators wrote for the coordinator."""

    kind: str


@dataclass(frozen=True)
class ToAggregator:
    """A message of the coordinator for the aggregators."""

    kind: str


Address = FromDevice | ToDevice | ToAll | Chunk | FromAggregator | ToAggregator


@dataclass(frozen=True)
class Topics:
    """The topics of one fleet."""

    fleet: str

    def __post_init__(self) -> None:
        check_name(self.fleet, "fleet")

    def build(self, address: Address) -> str:
        """The topic of an address."""
        root = f"{ROOT}/{self.fleet}"
        match address:
            case FromDevice(device, kind):
                return f"{root}/up/{device}/{kind}"
            case ToDevice(device, kind):
                return f"{root}/down/{device}/{kind}"
            case ToAll(kind):
                return f"{root}/all/{kind}"
            case Chunk(sha16, index, ""):
                return f"{root}/blob/{sha16}/{index}"
            case Chunk(sha16, index, device):
                return f"{root}/up/{device}/blob/{sha16}.{index}"
            case FromAggregator(kind):
                return f"{root}/server/up/{kind}"
            case ToAggregator(kind):
                return f"{root}/server/down/{kind}"

    def parse(self, topic: str) -> Address | None:
        """The address of a topic, or None if it is none of this fleet's."""
        head = f"{ROOT}/{self.fleet}/"
        if not topic.startswith(head):
            return None
        match topic[len(head) :].split("/"):
            case ["up", device, "blob", chunk] if _NAME.fullmatch(device):
                sha16, _, index = chunk.partition(".")
                return _chunk(sha16, index, device)
            case ["up", device, kind] if _NAME.fullmatch(device) and _KIND.fullmatch(kind):
                return FromDevice(device, kind)
            case ["down", device, kind] if _NAME.fullmatch(device) and _KIND.fullmatch(kind):
                return ToDevice(device, kind)
            case ["all", kind] if _KIND.fullmatch(kind):
                return ToAll(kind)
            case ["blob", sha16, index]:
                return _chunk(sha16, index, "")
            case ["server", "up", kind] if _KIND.fullmatch(kind):
                return FromAggregator(kind)
            case ["server", "down", kind] if _KIND.fullmatch(kind):
                return ToAggregator(kind)
            case _:
                return None

    def for_device(self, device: str) -> tuple[str, str]:
        """The filters that a device subscribes to."""
        return f"{ROOT}/{self.fleet}/down/{device}/+", f"{ROOT}/{self.fleet}/all/+"

    def for_coordinator(self) -> tuple[str, str]:
        """The filters that the coordinator subscribes to."""
        return f"{ROOT}/{self.fleet}/up/+/+", f"{ROOT}/{self.fleet}/up/+/blob/+"

    def for_aggregator(self) -> str:
        """The filter that the aggregators subscribe to."""
        return f"{ROOT}/{self.fleet}/server/down/+"

    def from_aggregator(self) -> str:
        """The filter that a coordinator with aggregators subscribes to as well."""
        return f"{ROOT}/{self.fleet}/server/up/+"

    def chunks_of(self, sha16: str) -> str:
        """The filter for all chunks of a blob that the coordinator sends."""
        return f"{ROOT}/{self.fleet}/blob/{sha16}/+"


def _chunk(sha16: str, index: str, device: str) -> Chunk | None:
    if not _SHA16.fullmatch(sha16) or not _INDEX.fullmatch(index) or int(index) >= _MOST_CHUNKS:
        return None
    return Chunk(sha16, int(index), device)
