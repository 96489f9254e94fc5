"""Messages: MessagePack with hard limits, then frozen typed records.

A message is the array ``[PROTOCOL, kind, fields]``.  Decoding limits first (length, nesting, sizes), then validates
into one of the records below: unknown fields are ignored, known ones never change meaning.  Nothing received is
trusted; :class:`~edgepfl.errors.WireError` is the only thing a hostile message can cause.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, TypeAlias

import msgpack
import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgepfl.eligibility import DIGEST_CHARACTERS, Conditions
from edgepfl.errors import WireError
from edgepfl.plan import PROTOCOL, Amend
from edgepfl.privacy.terms import Terms as Privacy
from edgepfl.secagg.terms import Terms
from edgepfl.seeds import SEED_BITS

MESSAGE_LIMIT = 128 << 10  # bytes of one message
STRING_LIMIT = 1024  # bytes
BINARY_LIMIT = 70_000  # bytes: a chunk, an inline blob, or the hashes of 4,375 chunks
ARRAY_LIMIT = 4096
MAP_LIMIT = 64
CONTAINERS_LIMIT = 10_000  # lists and maps: an empty one is a byte here and some 60 of memory
CHUNK = 64 << 10  # bytes of a chunk, where nobody asks for another size
INLINE_LIMIT = CHUNK  # bytes of a blob that rides in its message, if there is room: it would be one chunk
CHUNK_SIZES = (16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)  # bytes, from the slowest link to the fastest
MEMBERS_LIMIT = 2000  # devices that a hub may speak for
RUNTIMES_LIMIT = 16  # that a device may have
AMENDS_LIMIT = 16  # of a task
UNMET_LIMIT = 16  # conditions that a device may name

# \Z and not $, which would let a final line feed through
Device: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?\Z")]
Below: TypeAlias = Annotated[  # a device under a hub, by its name there; with hubs in between, by the way to it
    str, Meta(pattern=r"\A[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?(/[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?){0,2}\Z")
]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Sha256: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 40)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << SEED_BITS) - 1)]
RoundNumber: TypeAlias = Annotated[int, Meta(ge=-1, le=1 << 31)]  # -1: none yet
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
ChunkSize: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]  # which sizes there are is the transfer's business
Text: TypeAlias = Annotated[str, Meta(max_length=256)]  # characters, of up to 4 bytes each
Words: TypeAlias = Annotated[str, Meta(max_length=64)]  # of a codec
Numbers: TypeAlias = dict[Name, float]


class BlobRef(msgspec.Struct, frozen=True):
    """A blob by its content.

    Attributes:
        sha256: digest of the whole, hexadecimal.
        size: bytes.
        inline: the blob itself, if it is small.
        chunks: else 16-byte BLAKE2b digests of its chunks, one after another.
        chunk_size: what :attr:`chunk` is if that is not :data:`CHUNK`; "chunk" on the wire.
    """

    sha256: Sha256
    size: Count
    inline: bytes = b""
    chunks: bytes = b""
    chunk_size: ChunkSize | UnsetType = msgspec.field(default=UNSET, name="chunk")

    def __post_init__(self) -> None:
        if self.chunk_size == CHUNK:  # so that equal references are equal
            msgspec.structs.force_setattr(self, "chunk_size", UNSET)

    @property
    def chunk(self) -> int:
        """Bytes of each chunk but the last: one of :data:`CHUNK_SIZES`."""
        return CHUNK if self.chunk_size is UNSET else self.chunk_size


class Message(msgspec.Struct, frozen=True):
    """What crosses the bus; ``KIND`` is its name on the wire and in the topic."""

    KIND: ClassVar[str]


class Hello(Message, frozen=True):
    """A device is here: sent at every connection and whenever asked.

    Attributes:
        session: a number that is new at every start of the agent; a stale will names an old one.
        pending: (run, round) whose report waits for the coordinator's word, or ("", -1).
        members: of a hub alone, the devices that are with it; ``examples`` is the sum of theirs.
        identity: of its storage, drawn once when that was made: another card is another one.
        incarnation: of its process, drawn at its start: two of them that speak in turn are two agents with one name.
        chunk: bytes of the chunks that it would like: what its link carries in a second; unset for :data:`CHUNK`.
        judged: digest of the conditions (of a roll call) that ``unmet`` is about; unset for none.
        unmet: why it cannot take part just now, a reason for each condition that does not hold; unset for none.
    """

    KIND: ClassVar[str] = "hello"
    device: Device
    session: Count
    runtimes: Annotated[tuple[Name, ...], Meta(max_length=RUNTIMES_LIMIT)]
    examples: Count
    memory_mib: Count
    agent: Name
    pending: tuple[Annotated[str, Meta(max_length=64)], RoundNumber] = ("", -1)
    protocol: int = PROTOCOL
    members: Annotated[tuple[Below, ...], Meta(max_length=MEMBERS_LIMIT)] | UnsetType = UNSET
    identity: Count | UnsetType = UNSET
    incarnation: Count | UnsetType = UNSET
    chunk: ChunkSize | UnsetType = UNSET
    judged: Annotated[str, Meta(max_length=DIGEST_CHARACTERS)] | UnsetType = UNSET
    unmet: Annotated[tuple[Text, ...], Meta(max_length=UNMET_LIMIT)] | UnsetType = UNSET


class Gone(Message, frozen=True):
    """A device left; the broker sends it for a device that cannot."""

    KIND: ClassVar[str] = "gone"
    device: Device
    session: Count


class Part(msgspec.Struct, frozen=True, array_like=True):
    """What one device under a hub did in a round.

    Attributes:
        device: its name below the hub.
        examples: how many it trains on.
        steps: minibatch steps really taken.
        metrics: as in its own report.
    """

    device: Below
    examples: Count
    steps: Count
    metrics: Numbers = {}


class Report(Message, frozen=True, omit_defaults=True):
    """A device's result of one round, or that of all devices of a hub.

    Attributes:
        examples: how many the device trains on; of a hub, the sum over its members.
        steps: minibatch steps really taken; of a hub, the most of any member.
        upload: the UP slots, by :mod:`edgepfl.codec`; None where nothing was trained.  Of a hub, exact sums of them.
        metrics: "loss" of training; "accuracy.MODEL" and "loss.MODEL" where the task asked for evaluation.
        seconds: of the device's own time, by phase.
        kept: digest of the KEEP slots after this round: proof of what a crash must not change.
        members: of a hub alone, whose uploads are in the sums, in the order of their names.
    """

    KIND: ClassVar[str] = "report"
    device: Device
    session: Count
    run: Name
    round: RoundNumber
    attempt: Count
    examples: Count
    steps: Count
    upload: BlobRef | None
    metrics: Numbers
    seconds: Numbers
    kept: Sha256
    members: Annotated[tuple[Part, ...], Meta(max_length=MEMBERS_LIMIT)] = ()


class Failed(Message, frozen=True):
    """A device could not do its task, and why."""

    KIND: ClassVar[str] = "failed"
    device: Device
    session: Count
    run: Name
    round: RoundNumber
    attempt: Count
    code: Name
    detail: Text


class Progress(Message, frozen=True, omit_defaults=True):
    """A device is still at work: this renews its lease.

    Attributes:
        steps: minibatch steps done.
        paused: which conditions of the task it lost, while it waits for them at the boundary of a step.
    """

    KIND: ClassVar[str] = "progress"
    device: Device
    session: Count
    run: Name
    round: RoundNumber
    attempt: Count
    steps: Count
    paused: Text = ""


class Stopped(Message, frozen=True):
    """Work on a task has really ended, because a Cancel or a Commit said so: its device is free for another.

    Attributes:
        steps: minibatch steps it had taken.
    """

    KIND: ClassVar[str] = "stopped"
    device: Device
    session: Count
    run: Name
    round: RoundNumber
    attempt: Count
    steps: Count


class Need(Message, frozen=True, omit_defaults=True):
    """The receiver of a blob asks for chunks.

    Attributes:
        sha256: of the blob.
        ranges: half-open ranges of indices of chunks.
        chunk: bytes of each chunk.
        quiet: seconds; what was sent within them is on its way to the receiver and need not be sent again.
    """

    KIND: ClassVar[str] = "need"
    sha256: Sha256
    ranges: tuple[tuple[Count, Count], ...]
    chunk: ChunkSize = CHUNK
    quiet: Seconds = 0.0


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A device of a cohort, and the last round of this run whose report of it was accepted."""

    device: Device
    accepted_round: RoundNumber


class Task(Message, frozen=True, omit_defaults=True):
    """What the cohort is to do in a round.

    Attributes:
        cohort: who it is for; everyone else ignores it.
        bundle: plan and graphs.
        download: the DOWN slots, by :mod:`edgepfl.codec`.
        hyper: values of the plan's runtime hyperparameters.
        steps: minibatch steps to train; 0 only evaluates.
        seed: of the round; each device derives its own from it.
        evaluate: evaluate the models as they are before this round's training.
        tune_steps: steps of ``tune`` before evaluation.
        final: keep the evaluated models for prediction.
        deadline: seconds from receipt, on the receiver's own clock.
        heartbeat: seconds between the Progress messages that renew the lease.
        patience: seconds of training after which a device finishes with the steps it has done; 0 for no end.
        settings: for hubs, the server's own hyperparameters that differ from the plan's.
        grid: for hubs, where their sums lie: ``2^grid`` bounds every weighted number of an upload.
        codec: how a device encodes its upload, in the words of :mod:`edgepfl.coding`; empty for raw tensors.
        amends: the KEEP slots that follow what the codec made of the upload.
        conditions: what must hold on a device before and while it works on this; None for nothing.
        secagg: how it hides its upload from the coordinator; None where it does not.
        privacy: how it bounds its upload, and perhaps adds noise to it; None where it does not.
    """

    KIND: ClassVar[str] = "task"
    run: Name
    round: RoundNumber
    attempt: Count
    cohort: tuple[Member, ...]
    bundle: BlobRef
    download: BlobRef
    hyper: Numbers
    steps: Count
    seed: Seed
    evaluate: bool
    tune_steps: Count
    final: bool
    deadline: Seconds
    heartbeat: Seconds
    patience: Seconds = 0.0
    settings: dict[Name, float | Name] = {}
    grid: Annotated[int, Meta(ge=-500, le=499)] = 0
    codec: Words = ""
    amends: Annotated[tuple[Amend, ...], Meta(max_length=AMENDS_LIMIT)] = ()
    conditions: Conditions | None = None
    secagg: Terms | None = None
    privacy: Privacy | None = None


class Commit(Message, frozen=True):
    """A round is over: the reports of these devices count, all other reports of it do not."""

    KIND: ClassVar[str] = "commit"
    run: Name
    round: RoundNumber
    accepted: tuple[Device, ...]


class Cancel(Message, frozen=True, omit_defaults=True):
    """Stop work on this attempt at a round, and say Stopped when it has ended; its result will not be taken.

    Attributes:
        reason: for people.
        unknown: whether the coordinator knows no such run at all: then a report of it need not be sent again before
            the next connection or roll call.  What the device keeps of the run is not touched.
    """

    KIND: ClassVar[str] = "cancel"
    run: Name
    round: RoundNumber
    attempt: Count
    reason: Text
    unknown: bool = False


class SecAgg(Message, frozen=True):
    """A step of secure aggregation, from a device or to it: see :mod:`edgepfl.secagg.messages`."""

    KIND: ClassVar[str] = "secagg"
    device: Device
    run: Name
    round: RoundNumber
    attempt: Count
    body: bytes


class Refused(Message, frozen=True):
    """One of two agents that have one name is told to end: a person must give it a name of its own.

    Attributes:
        incarnation: of the agent that is meant, from its Hello; the other one reads this message, too.
        why: for a person.
    """

    KIND: ClassVar[str] = "refused"
    device: Device
    identity: Count
    incarnation: Count
    why: Text


class RollCall(Message, frozen=True, omit_defaults=True):
    """The coordinator asks for a Hello: it (re)started, or another run began or ended.

    Attributes:
        conditions: what the active run asks of a device; until the next roll call or task, the device says Hello again
            whenever what it does not meet changes.  None: nothing is asked.
    """

    KIND: ClassVar[str] = "rollcall"
    session: Count
    conditions: Conditions | None = None


class Order(Message, frozen=True):
    """The coordinator's order to its aggregators; it is repeated until it is done.

    Attributes:
        job: digest of what is to be done, a blob in the store that they share.
    """

    KIND: ClassVar[str] = "order"
    job: Sha256


class Done(Message, frozen=True):
    """The aggregators have done a job.

    Attributes:
        job: digest of the order's.
        outcome: digest of what came of it, a blob in the store that they share.
    """

    KIND: ClassVar[str] = "done"
    job: Sha256
    outcome: Sha256


class Here(Message, frozen=True):
    """The aggregators are here, with nothing to do: whoever waits for them orders again.

    Attributes:
        ranks: how many processes they are.
    """

    KIND: ClassVar[str] = "here"
    ranks: Count


KINDS: dict[str, type[Message]] = {
    record.KIND: record
    for record in (
        Hello,
        Gone,
        Report,
        Failed,
        Progress,
        Stopped,
        Need,
        Task,
        Commit,
        Cancel,
        RollCall,
        Order,
        Done,
        Here,
        Refused,
        SecAgg,
    )
}


def encode(message: Message) -> bytes:
    """The bytes of a message.

    Raises:
        WireError: a receiver would refuse it: too long, too many items, or a value outside its field's limits.
    """
    where = f"a {message.KIND} to send"
    fields = msgspec.to_builtins(message, builtin_types=(bytes,))
    try:
        data: bytes = msgpack.packb([PROTOCOL, message.KIND, fields], use_bin_type=True)
    except (ValueError, OverflowError) as error:  # half a surrogate, or an integer of more than 64 bits
        raise WireError(f"it has no bytes ({error})", where=where) from error
    decode(data, where=where)  # better an error here than silence at every receiver
    return data


def decode(data: bytes, *, where: str = "message") -> Message:
    """The message in ``data``.

    Raises:
        WireError: it is not a message of ours.
    """
    if len(data) > MESSAGE_LIMIT:
        raise WireError(f"{len(data)} bytes, at most {MESSAGE_LIMIT} are allowed", where=where, reason="too long")
    match _unpack(data, where):
        case [int(protocol), str(kind), dict(fields)] if type(protocol) is int:  # True is an int to isinstance
            pass
        case _:
            raise WireError("not [protocol, kind, fields]", where=where, reason="malformed")
    if protocol != PROTOCOL:
        raise WireError(
            f"protocol {protocol}, and this edgepfl speaks {PROTOCOL}",
            where=where,
            remedy="Update the older side",
            reason="protocol",
        )
    if kind not in KINDS:
        raise WireError(f"unknown kind {kind[:32]!r}", where=where, reason="unknown kind")
    try:
        message = msgspec.convert(fields, KINDS[kind], builtin_types=(bytes,))  # else text passes for base64
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise WireError(f"not a {kind} ({error})", where=where) from error
    _check_finite(message, where)
    return message


def _unpack(data: bytes, where: str) -> Any:  # noqa: ANN401  msgpack's value is any of its types until it is validated
    left = CONTAINERS_LIMIT

    def listed(items: list[Any]) -> list[Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {CONTAINERS_LIMIT} lists and maps")
        return items

    def mapped(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        listed(pairs)
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a field is given twice")
        return fields

    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            list_hook=listed,
            object_pairs_hook=mapped,
            max_str_len=STRING_LIMIT,
            max_bin_len=BINARY_LIMIT,
            max_array_len=ARRAY_LIMIT,
            max_map_len=MAP_LIMIT,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"not a message ({type(error).__name__}: {error})", where=where, reason="malformed") from error


def _check_finite(message: Message | Part | Conditions | Amend, where: str) -> None:
    if isinstance(message, Report):
        for part in message.members:
            _check_finite(part, where)
    for amend in message.amends if isinstance(message, Task) else ():
        _check_finite(amend, where)
    if isinstance(message, Task | RollCall) and message.conditions is not None:
        _check_finite(message.conditions, where)
    for field in message.__struct_fields__:
        value = getattr(message, field)
        numbers = value.values() if isinstance(value, dict) else (value,)
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise WireError(f"{field} is not finite", where=where)
