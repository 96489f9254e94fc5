"""What coordinator and aggregators tell each other through the store that they share.

A job is a blob, and its outcome is another.  Both are read through limits and validated like a message: whoever can
write to the topics of the server can name any blob.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from coordinator import pieces
from coordinator.config import RunConfig
from coordinator.journal import Checkpoint
from coordinator.pieces import Manifest, Shard
from edgepfl.errors import CodecError
from edgepfl.wire import Count, Device, Name, RoundNumber, Sha256

ERROR_LIMIT = 1000  # characters


class Given(msgspec.Struct, frozen=True):
    """A report that counts.

    Attributes:
        examples: how many the device trains on.
        steps: minibatch steps it took.
        upload: digest of its UP slots.
        scale: what its means are multiplied by: 1 but for reports that come late.
    """

    device: Device
    examples: Count
    steps: Count
    upload: Sha256
    scale: Annotated[float, Meta(ge=0, le=1)] = 1.0


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Make the state after a round.

    Attributes:
        uploads: in the order of the devices' names.
        fleet: every device that the run knows.
        last: whether it is the last round that trains.
        grid: where exact sums lie, see :class:`~coordinator.exact.Grid`; None for sums in order.
    """

    uploads: tuple[Given, ...]
    fleet: tuple[Device, ...]
    last: bool
    grid: int | None = None


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Make the downloads of some devices."""

    devices: tuple[Device, ...]


class Job(msgspec.Struct, frozen=True):
    """What is to be done.  All that it depends on is in it or named by digest, so doing it twice gives the same bits.

    Attributes:
        number: of the round.
        attempt: at the round.
        bundle: digest of the run's.
        config: the run's.
        checkpoint: the state before: a whole one, or one that aggregators made.
    """

    run: Name
    number: RoundNumber
    attempt: Count
    bundle: Sha256
    config: RunConfig
    checkpoint: Checkpoint
    work: Update | Send


class Updated(msgspec.Struct, frozen=True, tag="updated"):
    """An :class:`Update` is done.

    Attributes:
        job: whose outcome it is.
        checkpoint: of the state after it, whose own blob is a :class:`~coordinator.pieces.Manifest`.
        download: digest of the DOWN slots of every device; None where each gets its own.
    """

    job: Sha256
    checkpoint: Checkpoint
    download: Sha256 | None

    @property
    def blobs(self) -> set[str]:
        """The digests of what was made, or was there before."""
        return self.checkpoint.blobs | ({self.download} if self.download else set())


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A :class:`Send` is done: the digest of each device's DOWN slots."""

    job: Sha256
    downloads: dict[Device, Sha256]

    @property
    def blobs(self) -> set[str]:
        """See :class:`Updated`."""
        return set(self.downloads.values())


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It cannot be done, for a reason that trying again will not change."""

    job: Sha256
    why: Annotated[str, Meta(max_length=ERROR_LIMIT)]

    @property
    def blobs(self) -> set[str]:
        """See :class:`Updated`."""
        return set()


Outcome: TypeAlias = Updated | Sent | Refused


def read_shard(data: bytes) -> Shard:
    """The shard of another rank.

    Raises:
        CodecError: it is none.
    """
    return pieces.decode(data, Shard, "a shard")


def read_job(data: bytes | bytearray) -> Job:
    """The job in a blob.

    Raises:
        CodecError: there is none in it.
    """
    return pieces.decode(data, Job, "a job")


def read_manifest(data: bytes | bytearray) -> Manifest:
    """The manifest in a blob.

    Raises:
        CodecError: there is none in it.
    """
    return pieces.decode(data, Manifest, "a manifest")


def read_outcome(data: bytes | bytearray, job: str) -> Outcome:
    """The outcome of a job.

    Raises:
        CodecError: it is none, or another job's.
    """
    outcome: Outcome = pieces.decode(data, Outcome, "an outcome")  # type: ignore[arg-type]  # a union is no type to mypy
    if outcome.job != job:
        raise CodecError(f"it is of job {outcome.job[:16]}, not of {job[:16]}", where="an outcome")
    return outcome
