"""The pure half of the chunk protocol: which chunks are missing, asked for and lately sent.

Chunks are counted from 0; a set of them is an int whose bit k stands for chunk k.  Time comes in as ``now``, in
seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from edgepfl import wire
from edgepfl.errors import TransferError
from edgepfl.wire import BlobRef, Need

CHUNK = 64 << 10  # bytes
DIGEST = 16  # bytes of a chunk's BLAKE2b digest
WINDOW = 16  # chunks under way to one receiver
BLOB_LIMIT = wire.BINARY_LIMIT // DIGEST * CHUNK  # bytes: more digests than this do not fit into a message
PATIENCE = 1.0  # seconds without a chunk before the same ones are asked for again
MOST_PATIENCE = 10.0  # seconds
QUIET = 0.150  # seconds in which a chunk is not sent twice
SETTLE = 0.025  # seconds without a chunk before more are asked for: what others asked for may be arriving


def chunk_count(size: int) -> int:
    """How many chunks a blob of ``size`` bytes has."""
    return -(-size // CHUNK)


def digest(data: bytes) -> bytes:
    """The 16-byte BLAKE2b digest of one chunk."""
    return blake2b(data, digest_size=DIGEST).digest()


def digests(data: bytes) -> bytes:
    """The digests of all chunks of a blob, one after another, as :class:`~edgepfl.wire.BlobRef` holds them."""
    view = memoryview(data)
    return b"".join(blake2b(view[at : at + CHUNK], digest_size=DIGEST).digest() for at in range(0, len(data), CHUNK))


def check_ref(ref: BlobRef, limit: int = BLOB_LIMIT) -> None:
    """Refuse a reference that contradicts itself.

    Args:
        ref: from the network.
        limit: bytes of a blob, at most.

    Raises:
        TransferError: it is too big, or has neither all its bytes nor one digest for each chunk.
    """
    where = f"blob {ref.sha256[:16]}"
    if ref.size > limit:
        raise TransferError(f"{ref.size} bytes, at most {limit} are allowed", where=where)
    if ref.inline:
        if len(ref.inline) != ref.size or ref.chunks:
            raise TransferError(f"{ref.size} bytes, but {len(ref.inline)} of them inline", where=where)
    elif len(ref.chunks) != DIGEST * chunk_count(ref.size):
        raise TransferError(f"{len(ref.chunks)} bytes of digests for {chunk_count(ref.size)} chunks", where=where)


@dataclass(frozen=True)
class Fetch:
    """A blob on its way to us.

    Attributes:
        ref: the blob, checked by :func:`check_ref`, not inline.
        have: chunks that are here, verified.
        asked: chunks that were asked for and are not here yet.
        moved: when chunks were last asked for, or one came.
        patience: seconds from then until the chunks asked for count as lost.
    """

    ref: BlobRef
    have: int = 0
    asked: int = 0
    moved: float = 0.0
    patience: float = PATIENCE

    @property
    def missing(self) -> int:
        """Chunks that are not here."""
        return ((1 << chunk_count(self.ref.size)) - 1) & ~self.have

    @property
    def due(self) -> float:
        """When :meth:`ask` has something to say."""
        roomy = self.asked.bit_count() <= WINDOW // 2 and self.missing & ~self.asked
        return self.moved + (SETTLE if roomy else self.patience)

    def stalled(self, now: float) -> bool:
        """Whether what was asked for counts as lost."""
        return self.asked != 0 and now >= self.moved + self.patience

    def lapse(self, now: float) -> Fetch:
        """The state in which what stalled may be asked for again.

        The patience doubles: a slow link must not be flooded with repetitions.
        """
        if not self.stalled(now):
            return self
        return replace(self, asked=0, patience=min(2 * self.patience, MOST_PATIENCE))

    def ask(self, now: float) -> tuple[Fetch, Need | None]:
        """Ask for the lowest missing chunks until a window of them is under way, or for nothing.

        The window is refilled when half of it has come, and nothing more is coming just now.
        """
        fetch = self.lapse(now)
        more = _lowest(fetch.missing & ~fetch.asked, WINDOW - fetch.asked.bit_count())
        if now < fetch.due or not more:
            return fetch, None
        return replace(fetch, asked=fetch.asked | more, moved=now), Need(self.ref.sha256, _ranges(more))

    def accepts(self, index: int, data: bytes) -> bool:
        """Whether ``data`` is chunk ``index`` of this blob, and is not here yet."""
        if not 0 <= index < chunk_count(self.ref.size) or self.have >> index & 1:
            return False
        length = min(CHUNK, self.ref.size - index * CHUNK)
        return len(data) == length and digest(data) == self.ref.chunks[index * DIGEST : (index + 1) * DIGEST]

    def took(self, index: int, now: float) -> Fetch:
        """The state after chunk ``index`` was stored.

        The patience follows the pace: three times the last gap between chunks, and at least half of what it was.
        """
        patience = max(3 * (now - self.moved), self.patience / 2)
        return replace(
            self,
            have=self.have | 1 << index,
            asked=self.asked & ~(1 << index),
            moved=now,
            patience=min(max(patience, PATIENCE), MOST_PATIENCE),
        )

    def forget(self, now: float) -> Fetch:
        """The state at the start and after a connection was lost: nothing is under way, so ask at once."""
        return replace(self, asked=0, moved=now - SETTLE, patience=PATIENCE)


@dataclass(frozen=True)
class Offer:
    """A blob that others may ask for.

    Attributes:
        size: bytes.
        sent: (when, chunks) of what was sent less than ``QUIET`` ago.
    """

    size: int
    sent: tuple[tuple[float, int], ...] = ()

    def rests(self, now: float) -> bool:
        """Whether nothing of it was sent just now, so that there is nothing to remember."""
        return all(now - when >= QUIET for when, _ in self.sent)

    def grant(self, need: Need, now: float) -> tuple[Offer, tuple[int, ...]]:
        """The chunks to send for this Need: at most a window of those that nobody was sent just now."""
        sent = tuple(entry for entry in self.sent if now - entry[0] < QUIET)
        asked = _bits(need.ranges[:WINDOW], chunk_count(self.size))
        for _, chunks in sent:
            asked &= ~chunks
        granted = _lowest(asked, WINDOW)
        if granted:
            sent = (*sent, (now, granted))
        return Offer(self.size, sent), indices(granted)


def indices(chunks: int) -> tuple[int, ...]:
    """The members of a set of chunks, in order."""
    members = []
    while chunks:
        members.append((chunks & -chunks).bit_length() - 1)
        chunks &= chunks - 1
    return tuple(members)


def _lowest(chunks: int, count: int) -> int:
    rest = chunks
    for _ in range(count):
        rest &= rest - 1
    return chunks & ~rest


def _ranges(chunks: int) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for index in indices(chunks):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def _bits(ranges: Iterable[tuple[int, int]], count: int) -> int:
    chunks = 0
    for start, stop in ranges:
        last = min(stop, count)  # before any shift: the numbers come from the network
        if start < last:
            chunks |= (1 << last) - (1 << start)
    return chunks
