"""The pure half of the chunk protocol: which chunks are missing, asked for and lately sent.

Chunks are counted from 0; a set of them is an int whose bit k stands for chunk k.  Time comes in as ``now``, in
seconds of any clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from edgepfl import wire
from edgepfl.errors import TransferError
from edgepfl.wire import CHUNK, CHUNK_SIZES, BlobRef, Need

DIGEST = 16  # bytes of a chunk's BLAKE2b digest
WINDOW = 16  # chunks under way to one receiver, at most
_WINDOW_BYTES = 512 << 10  # likewise: where many are slow to read, the broker holds that for each of them
MOST_DIGESTS = wire.BINARY_LIMIT // DIGEST  # of a blob: more do not fit into a message
BLOB_LIMIT = MOST_DIGESTS * CHUNK_SIZES[-1]  # bytes
PATIENCE = 1.0  # seconds without a chunk before the same ones are asked for again
MOST_PATIENCE = 10.0  # seconds
START = 4  # chunks to ask for before any has come
MOST_QUIET = 60.0  # seconds for which it is remembered what was sent
QUIET = 0.4  # seconds in which no chunk is sent twice: others may ask for it, too
SETTLE = 0.025  # seconds without a chunk before more are asked for: what others asked for may be arriving


def chunk_count(size: int, chunk: int = CHUNK) -> int:
    """How many chunks of ``chunk`` bytes a blob of ``size`` bytes has."""
    return -(-size // chunk)


def window_of(chunk: int) -> int:
    """How many chunks of ``chunk`` bytes may be under way to one receiver."""
    return min(WINDOW, max(START, _WINDOW_BYTES // chunk))


def chunk_fitting(size: int, wish: int = CHUNK) -> int:
    """The least chunk size from ``wish`` upwards, in bytes, in which a blob of ``size`` bytes can be described.

    Raises:
        TransferError: there is none.
    """
    for chunk in CHUNK_SIZES:
        if chunk >= wish and chunk_count(size, chunk) <= MOST_DIGESTS:
            return chunk
    raise TransferError(f"a blob of {size} bytes, at most {BLOB_LIMIT} are possible")


def digest(data: bytes) -> bytes:
    """The 16-byte BLAKE2b digest of one chunk."""
    return blake2b(data, digest_size=DIGEST).digest()


def digests(data: bytes, chunk: int = CHUNK) -> bytes:
    """The digests of all chunks of a blob, one after another, as :class:`~edgepfl.wire.BlobRef` holds them."""
    view = memoryview(data)
    return b"".join(blake2b(view[at : at + chunk], digest_size=DIGEST).digest() for at in range(0, len(data), chunk))


def check_ref(ref: BlobRef, limit: int = BLOB_LIMIT) -> None:
    """Refuse a reference that contradicts itself.

    Args:
        ref: from the network.
        limit: bytes of a blob, at most.

    Raises:
        TransferError: it is too big, its chunks have no size of ours, or it has neither all its bytes nor one digest
            for each chunk.
    """
    where = f"blob {ref.sha256[:16]}"
    if ref.size > limit:
        raise TransferError(f"{ref.size} bytes, at most {limit} are allowed", where=where)
    if ref.chunk not in CHUNK_SIZES:
        raise TransferError(f"chunks of {ref.chunk} bytes", where=where, remedy="Update the older side")
    count = chunk_count(ref.size, ref.chunk)
    if ref.inline:
        if len(ref.inline) != ref.size or ref.chunks:
            raise TransferError(f"{ref.size} bytes, but {len(ref.inline)} of them inline", where=where)
    elif len(ref.chunks) != DIGEST * count:
        raise TransferError(f"{len(ref.chunks)} bytes of digests for {count} chunks", where=where)


@dataclass(frozen=True)
class Fetch:
    """A blob on its way to us.

    A topic may be shared by many receivers, and a slow link carries what all of them ask for.  So we begin with a small
    window, follow what is coming for the others (what they got before us is asked for at the end, by all who lack it at
    about the same time), and say since when we listen: what was sent since then is on its way.

    Attributes:
        ref: the blob, checked by :func:`check_ref`, not inline.
        have: chunks that are here, verified.
        asked: chunks that were asked for and are not here yet.
        moved: when chunks were last asked for, or one came, if only for somebody else.
        patience: seconds from then until the chunks asked for count as lost.
        listening: since when every chunk that is sent reaches us or is lost on the way.
        window: chunks that may be asked for at once.
        cursor: after the last chunk that came.
        probe: chunks that were asked for again because nothing came, as long as nothing else has come.
        began: when it was first asked for, as long as nothing of it has come.
    """

    ref: BlobRef
    have: int = 0
    asked: int = 0
    moved: float = 0.0
    patience: float = PATIENCE
    listening: float = 0.0
    window: int = START
    cursor: int = 0
    probe: int = 0
    began: float | None = None

    @property
    def missing(self) -> int:
        """Chunks that are not here."""
        return ((1 << chunk_count(self.ref.size, self.ref.chunk)) - 1) & ~self.have

    @property
    def due(self) -> float:
        """When :meth:`ask` has something to say."""
        roomy = self.asked.bit_count() <= self.window // 2 and self.missing & ~self.asked and not self.probe
        return self.moved + (SETTLE if roomy else self.patience)

    def stalled(self, now: float) -> bool:
        """Whether what was asked for counts as lost."""
        return self.asked | self.probe != 0 and now >= self.moved + self.patience

    def lapse(self, now: float) -> Fetch:
        """The state in which what stalled may be asked for again.

        The patience doubles, and only few chunks are asked for: a slow link must not be flooded with repetitions.  If
        these come and nothing else does, all the rest is lost indeed.
        """
        if not self.stalled(now):
            return self
        lost = self.probe != 0 and not self.probe & self.missing
        return replace(
            self,
            asked=0,
            patience=min(2 * self.patience, MOST_PATIENCE),
            listening=now if lost else self.listening,
            window=START,
            probe=0 if lost else _next(self.missing, self.cursor, START),
        )

    def ask(self, now: float) -> tuple[Fetch, Need | None]:
        """Ask for the next missing chunks until a window of them is under way, or for nothing.

        The window is refilled when half of it has come, and nothing more is coming just now.
        """
        fetch = self.lapse(now)
        probes = fetch.probe & fetch.missing if not fetch.asked else 0
        more = probes or _next(fetch.missing & ~fetch.asked, fetch.cursor, fetch.window - fetch.asked.bit_count())
        if (now < fetch.due and not probes) or not more:
            return fetch, None
        quiet = 0.0 if probes else min(now - fetch.listening, MOST_QUIET)
        need = Need(self.ref.sha256, _ranges(more), self.ref.chunk, quiet)
        began = now if fetch.began is None and not fetch.have else fetch.began
        return replace(fetch, asked=fetch.asked | more, moved=now, began=began), need

    def accepts(self, index: int, data: bytes) -> bool:
        """Whether ``data`` is chunk ``index`` of this blob, and is not here yet."""
        chunk = self.ref.chunk
        if not 0 <= index < chunk_count(self.ref.size, chunk) or self.have >> index & 1:
            return False
        length = min(chunk, self.ref.size - index * chunk)
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
            window=min(self.window + 1, window_of(self.ref.chunk)),
            cursor=index + 1,
            probe=self.probe if self.probe >> index & 1 else 0,
            began=None,
        )

    def heard(self, now: float) -> Fetch:
        """The state after a chunk came that is here already: the link is alive, and busy with others."""
        return replace(self, moved=now, probe=0)

    def found(self, index: int) -> Fetch:
        """The state after chunk ``index`` was found here."""
        return replace(self, have=self.have | 1 << index)

    def forget(self, now: float, patience: float = PATIENCE) -> Fetch:
        """The state at the start and after a connection was lost: nothing is under way, so ask at once.

        Args:
            now: the time.
            patience: seconds within which senders answer, as far as that is known.
        """
        return replace(
            self, asked=0, moved=now - SETTLE, patience=patience, listening=now, window=START, probe=0, began=None
        )


@dataclass(frozen=True)
class Offer:
    """A blob that others may ask for, in chunks of one size.

    Attributes:
        size: bytes.
        chunk: bytes of a chunk.
        sent: when each chunk was last sent, without those that nobody can still await.
    """

    size: int
    chunk: int = CHUNK
    sent: Mapping[int, float] = field(default_factory=dict)

    def rests(self, now: float) -> bool:
        """Whether nothing of it was sent lately, so that there is nothing to remember."""
        return all(now - when >= MOST_QUIET for when in self.sent.values())

    def grant(self, need: Need, now: float) -> dict[int, float]:
        """When to send each chunk for this Need: at most a window of those that are not on their way to the receiver.

        One that was sent just now, before the receiver listened, waits a little: others may ask for it, too.
        """
        asked = _bits(need.ranges[:WINDOW], chunk_count(self.size, self.chunk))
        for index, when in self.sent.items():
            if now - when < min(need.quiet, MOST_QUIET):
                asked &= ~(1 << index)
        return {
            index: max(now, self.sent[index] + QUIET) if index in self.sent else now
            for index in indices(_lowest(asked, WINDOW))
        }

    def marked(self, chunks: Iterable[int], now: float) -> Offer:
        """The state after these chunks were sent."""
        recent = {index: when for index, when in self.sent.items() if now - when < MOST_QUIET}
        return replace(self, sent={**recent, **dict.fromkeys(chunks, now)})


def indices(chunks: int) -> tuple[int, ...]:
    """The members of a set of chunks, in order."""
    members = []
    while chunks:
        members.append((chunks & -chunks).bit_length() - 1)
        chunks &= chunks - 1
    return tuple(members)


def _next(chunks: int, cursor: int, count: int) -> int:
    """The first ``count`` chunks from ``cursor`` on, and after the last one from the beginning."""
    later = _lowest(chunks >> cursor, count) << cursor
    return later | _lowest(chunks & ((1 << cursor) - 1), count - later.bit_count())


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
