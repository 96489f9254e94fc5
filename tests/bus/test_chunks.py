"""The chunk protocol without a network: time and losses are ours."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import (
    BLOB_LIMIT,
    CHUNK,
    MOST_QUIET,
    PATIENCE,
    QUIET,
    START,
    WINDOW,
    Fetch,
    Offer,
    Receiver,
    Sender,
    check_ref,
    chunk_count,
    digests,
    window_of,
)
from edgepfl.errors import TransferError
from edgepfl.wire import BlobRef, Need


def blob(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)


def reference(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), chunks=digests(data))


def asked(need: Need | None) -> list[int]:
    return [index for start, stop in need.ranges for index in range(start, stop)] if need else []


@st.composite
def faults(draw: st.DrawFn) -> dict[str, float]:
    return {name: draw(st.floats(0.0, 0.4)) for name in ("lost", "doubled", "damaged", "late")}


def carry(chunks: list[tuple[int, bytes]], fault: dict[str, float], random: Random) -> list[tuple[int, bytes]]:
    """What arrives of what was sent."""
    arrived = []
    for index, data in chunks:
        if random.random() < fault["lost"]:
            continue
        wrong = bytes([data[0] ^ 1]) + data[1:]
        arrived.append((index, wrong if random.random() < fault["damaged"] else data))
        if random.random() < fault["doubled"]:
            arrived.append((random.choice([index, index + 1]), data))
    if random.random() < fault["late"]:
        random.shuffle(arrived)
    return arrived


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 40 * CHUNK), fault=faults(), seed=st.integers(0, 1 << 32))
def test_a_blob_arrives_whole_whatever_happens_to_its_chunks(size: int, fault: dict[str, float], seed: int) -> None:
    random, data = Random(seed), blob(size)
    with tempfile.TemporaryDirectory() as folder:
        sender = Sender(source := BlobStore(Path(folder) / "from"))
        receiver = Receiver(target := BlobStore(Path(folder) / "to"))
        ref = source.put(data)
        now, finished = 0.0, receiver.want(ref, 0.0)
        while not finished:
            assert now < 1e5, "it never ends"
            for need in receiver.due(now):
                assert len(asked(need)) <= WINDOW
                for index, chunk in carry(sender.requested(need, now), fault, random):
                    finished |= receiver.chunk(ref.sha256[:16], index, chunk, now) == ref.sha256
            now = max(now + 0.01, receiver.next_due or 0.0)
        assert target.read(ref.sha256) == data
        assert receiver.next_due is None
        assert not receiver.wanted
        assert not target.part(ref.sha256).exists()


def test_the_window_grows_and_is_refilled_when_half_of_it_has_come() -> None:
    fetch, need = Fetch(reference(blob(40 * CHUNK))).forget(5.0).ask(5.0)
    assert asked(need) == list(range(START))
    fetch = fetch.took(0, 5.1)
    assert fetch.ask(5.9)[1] is None  # more than half of it is still to come
    fetch = fetch.took(1, 5.9).took(2, 5.9)
    assert fetch.ask(5.9)[1] is None  # and more may be coming just now
    fetch, need = fetch.ask(6.0)
    assert asked(need) == [4, 5, 6, 7, 8, 9]
    assert fetch.asked.bit_count() == START + 3  # it has grown with each chunk
    for index in fetch.missing.bit_length() * [0]:
        fetch = fetch.took(index, 6.0)
    assert fetch.window == window_of(CHUNK) == 8


def test_a_receiver_follows_what_is_coming_for_others_and_asks_for_the_beginning_at_the_end() -> None:
    fetch, _ = Fetch(reference(blob(8 * CHUNK))).forget(0.0).ask(0.0)
    fetch, need = replace(fetch, asked=0).took(5, 0.5).ask(0.6)
    assert need is not None
    assert asked(need) == [0, 1, 2, 6, 7]
    assert need.quiet == pytest.approx(0.6)  # since it listens: what was sent since then is on its way


def test_repetitions_on_a_busy_link_are_no_reason_to_ask_for_more_of_them() -> None:
    fetch, _ = Fetch(reference(blob(20 * CHUNK))).forget(0.0).ask(0.0)
    fetch = fetch.took(0, 0.1)
    for tenth in range(2, 100):
        fetch = fetch.heard(tenth / 10)
        assert fetch.ask(tenth / 10)[1] is None
    assert fetch.stalled(9.9 + PATIENCE)


def test_after_a_silence_few_chunks_are_asked_for_and_all_if_only_these_come() -> None:
    fetch = replace(Fetch(reference(blob(40 * CHUNK))).forget(0.0), window=WINDOW)
    fetch, _ = fetch.ask(0.0)
    fetch, need = fetch.ask(1.0)
    assert need is not None
    assert (asked(need), need.quiet) == ([0, 1, 2, 3], 0.0)  # sent again at once: they may be lost
    slow = fetch.took(0, 1.5).took(1, 2.0).took(2, 2.5).took(3, 3.0).took(4, 3.5)  # the first ones were only slow
    assert slow.probe == 0
    assert slow.ask(4.0)[1].quiet == 4.0  # type: ignore[union-attr]  # it fails if there is none
    lost = fetch.took(0, 1.5).took(1, 1.5).took(2, 1.5).took(3, 1.5)
    assert lost.ask(2.0)[1] is None
    lost, need = lost.ask(1.5 + lost.patience)
    assert need is not None
    assert (asked(need), need.quiet) == ([4, 5, 6, 7], 0.0)
    assert lost.listening == lost.moved  # from now on


def test_what_does_not_come_is_asked_for_again_ever_more_rarely() -> None:
    fetch, need = Fetch(reference(blob(2 * CHUNK))).forget(0.0).ask(0.0)
    waits = []
    for _ in range(6):
        assert fetch.ask(fetch.due - 0.001)[1] is None
        waits.append(fetch.due - fetch.moved)
        fetch, again = fetch.ask(fetch.due)
        assert again == need
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    for _ in range(10):
        fetch = replace(fetch, have=0, asked=3).took(0, fetch.moved + 0.1)
    assert fetch.patience == PATIENCE  # a brisk link is soon trusted again


def test_on_a_slow_link_the_patience_follows_the_pace() -> None:
    fetch, _ = Fetch(reference(blob(20 * CHUNK))).forget(0.0).ask(0.0)
    fetch = fetch.took(0, 0.9).took(1, 3.4)  # seconds for each chunk
    assert fetch.patience == pytest.approx(7.5)
    assert not fetch.stalled(3.4 + 7.4)
    assert fetch.stalled(3.4 + 7.5)
    assert fetch.forget(4.0).ask(4.0)[1] == Need(fetch.ref.sha256, ((2, 2 + START),))


@pytest.mark.parametrize(
    ("index", "change"),
    [(0, lambda d: d + b"x"), (0, lambda d: d[:-1]), (1, lambda d: d), (-1, lambda d: d), (99, lambda d: d)],
)
def test_a_chunk_must_fit(index: int, change: object) -> None:
    data = blob(CHUNK + 100)
    fetch = Fetch(reference(data))
    assert callable(change)
    assert not fetch.accepts(index, change(data[:CHUNK]))
    assert fetch.accepts(0, data[:CHUNK])
    assert fetch.accepts(1, data[CHUNK:])
    assert not fetch.took(0, 0.0).accepts(0, data[:CHUNK])
    assert not Fetch(BlobRef("0" * 64, 3, chunks=digests(b"longer"))).accepts(0, b"longer")


@pytest.mark.parametrize(
    "changes",
    [
        {"size": BLOB_LIMIT + 1},
        {"size": 1 << 40},
        {"size": 3 * CHUNK},
        {"chunks": b""},
        {"chunks": bytes(33)},
        {"inline": b"few"},
        {"inline": bytes(2 * CHUNK)},
    ],
)
def test_a_reference_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    ref = reference(blob(2 * CHUNK))
    check_ref(ref)
    receiver = Receiver(BlobStore(tmp_path))
    with pytest.raises(TransferError):
        receiver.want(msgspec.structs.replace(ref, **changes), 0.0)
    assert receiver.due(0.0) == []
    with pytest.raises(TransferError, match="allowed"):
        Receiver(BlobStore(tmp_path), limit=ref.size - 1).want(ref, 0.0)


@given(
    size=st.integers(0, 100 * CHUNK),
    needs=st.lists(
        st.tuples(
            st.floats(0, 0.1), st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40)), max_size=40)
        ),
        max_size=8,
    ),
)
def test_an_offer_grants_a_window_of_its_own_chunks_once(
    size: int, needs: list[tuple[float, list[tuple[int, int]]]]
) -> None:
    offer, now, last = Offer(size), 0.0, dict[int, float]()
    for wait, ranges in needs:
        now += wait
        granted = offer.grant(Need("0" * 64, tuple(ranges)), now)
        assert len(granted) <= WINDOW
        for index, when in granted.items():
            assert 0 <= index < chunk_count(size)
            assert any(start <= index < stop for start, stop in ranges)
            assert when == max(now, last.get(index, -1.0) + QUIET)
            if when == now:
                offer, last[index] = offer.marked((index,), now), now
        heard = offer.grant(Need("0" * 64, tuple(ranges), quiet=now + 1.0), now)
        assert not last.keys() & heard.keys()  # what was sent is on its way to who listened all the time
    assert offer.rests(now + MOST_QUIET)


def test_each_chunk_is_sent_once_for_all_who_ask_together(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    ref = blobs.put(blob(20 * CHUNK))
    sender, need = Sender(blobs), Need(ref.sha256, ((0, 16),))
    sent = sender.requested(need, 1.0)
    assert [index for index, _ in sent] == list(range(16))
    assert sent[3][1] == blob(20 * CHUNK)[3 * CHUNK : 4 * CHUNK]
    assert sender.requested(need, 1.1) == []
    assert [index for index, _ in sender.requested(Need(ref.sha256, ((14, 18),)), 1.1)] == [16, 17]
    assert sender.requested(msgspec.structs.replace(need, quiet=0.5), 1.4) == []  # the receiver listens for so long
    assert sender.requested(need, 1.4) == sent
    assert sender.requested(need, 1.4) == []
    sender.forget()  # our connection was lost
    assert sender.requested(need, 1.4) == sent
    assert sender.requested(Need("f" * 64, ((0, 16),)), 9.0) == []


def test_a_fetch_resumes_from_what_lies_on_the_disk(tmp_path: Path) -> None:
    data = blob(20 * CHUNK - 5)
    ref = reference(data)
    first = Receiver(BlobStore(tmp_path))
    assert not first.want(ref, 0.0)
    for index in (0, 1, 2, 19):
        assert first.chunk(ref.sha256[:16], index, data[index * CHUNK : (index + 1) * CHUNK], 0.0) is None
    part = BlobStore(tmp_path).part(ref.sha256)
    torn = part.read_bytes()
    part.write_bytes(torn[:CHUNK] + b"\0" + torn[CHUNK + 1 :] + b"more than there should be")  # chunk 1 is damaged
    again = Receiver(BlobStore(tmp_path))
    assert not again.want(ref, 0.0)
    assert asked(again.due(0.0)[0]) == [1, 3, 4, 5]
    assert again.next_due == PATIENCE
    missing = [1, *range(3, 19)]
    results = [again.chunk(ref.sha256[:16], k, data[k * CHUNK : (k + 1) * CHUNK], 0.0) for k in missing]
    assert results == [None] * 16 + [ref.sha256]
    assert BlobStore(tmp_path).read(ref.sha256) == data


def test_a_fetch_that_was_whole_before_a_crash_asks_for_nothing(tmp_path: Path) -> None:
    data = blob(3 * CHUNK)
    blobs = BlobStore(tmp_path)
    blobs.part(reference(data).sha256).write_bytes(data)
    receiver = Receiver(blobs)
    assert receiver.want(reference(data), 0.0)
    assert receiver.due(0.0) == []
    assert blobs.read(reference(data).sha256) == data


def test_a_reference_that_lies_is_found_out(tmp_path: Path) -> None:
    data = blob(CHUNK)
    blobs = BlobStore(tmp_path)
    lie = msgspec.structs.replace(reference(data), sha256="ab" * 32)
    receiver = Receiver(blobs)
    receiver.want(lie, 0.0)
    with pytest.raises(TransferError, match="and the whole has not"):
        receiver.chunk("ab" * 8, 0, data, 0.0)
    assert not receiver.wanted
    assert not list(tmp_path.iterdir())
    with pytest.raises(TransferError, match="another digest"):
        receiver.want(BlobRef("ab" * 32, 3, inline=b"abc"), 0.0)
    assert not blobs.has("ab" * 32)


def test_small_and_known_blobs_need_no_asking(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    receiver = Receiver(blobs)
    inline = BlobRef(hashlib.sha256(b"abc").hexdigest(), 3, inline=b"abc")
    assert receiver.want(inline, 0.0)
    assert receiver.want(inline, 0.0)
    assert receiver.want(BlobRef(hashlib.sha256(b"").hexdigest(), 0), 0.0)
    assert receiver.want(blobs.put(blob(CHUNK)), 0.0)
    assert receiver.next_due is None
    assert blobs.read(inline.sha256) == b"abc"


def test_blobs_take_turns_and_a_silent_sender_does_not_block_the_others(tmp_path: Path) -> None:
    receiver = Receiver(BlobStore(tmp_path), under_way=2 * CHUNK)
    refs = [reference(blob(CHUNK, seed)) for seed in range(3)]
    assert not any(receiver.want(ref, 0.0) for ref in (*refs, refs[0]))
    assert [need.sha256 for need in receiver.due(0.0)] == [refs[0].sha256, refs[1].sha256]
    assert receiver.next_due == PATIENCE
    assert [need.sha256 for need in receiver.due(PATIENCE)] == [refs[2].sha256, refs[0].sha256]
    receiver.cancel(refs[0].sha256)
    assert receiver.next_due is not None
    assert [need.sha256 for need in receiver.due(PATIENCE)] == [refs[1].sha256]
    assert receiver.wanted == {refs[1].sha256, refs[2].sha256}
    receiver.ask_again(PATIENCE)
    assert len(receiver.due(PATIENCE)) == 2


def test_two_references_for_one_name_are_refused(tmp_path: Path) -> None:
    ref = reference(blob(CHUNK))
    receiver = Receiver(BlobStore(tmp_path))
    receiver.want(ref, 0.0)
    with pytest.raises(TransferError, match="same first 16 digits"):
        receiver.want(msgspec.structs.replace(ref, chunks=bytes(16)), 0.0)
    receiver.cancel(ref.sha256[:16] + "0" * 48)
    assert receiver.wanted == {ref.sha256}
