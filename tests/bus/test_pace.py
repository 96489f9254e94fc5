"""How fast a link is, and the chunks that suit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepfl.bus._pace import Answers, Pace, chunk_for
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import CHUNK, CHUNK_SIZES, MOST_PATIENCE, PATIENCE, Receiver, Sender
from edgepfl.bus.transfer import Transfer

KIB = 1 << 10


@pytest.mark.parametrize(
    ("rate", "chunk"),
    [(1_000, 16), (20_000, 16), (33_000, 32), (100_000, 64), (131_072, 128), (200_000, 128), (3e5, 256), (1e8, 256)],
)
def test_a_chunk_takes_a_second_at_most(rate: float, chunk: int) -> None:
    assert chunk_for(rate) == chunk * KIB
    assert chunk == 16 or chunk * KIB / rate <= 1.0


def test_until_the_pace_is_known_the_last_size_holds_and_the_broker_has_the_last_word() -> None:
    assert chunk_for(None) == CHUNK
    assert chunk_for(None, known=16 * KIB) == 16 * KIB
    assert chunk_for(1e8, most=100_000) == 64 * KIB
    assert chunk_for(1e8, most=10) == 16 * KIB
    assert Transfer(chunk_kib=32).chunk(1e8, most=1 << 20) == 32 * KIB
    assert Transfer(chunk_kib=256).chunk(None, most=50_000) == 32 * KIB
    assert Transfer().chunk(1e8, most=1 << 20, known=CHUNK) == CHUNK_SIZES[-1]


def test_old_measures_fade_and_an_absent_sender_is_no_slow_link() -> None:
    pace = Pace()
    assert pace.took(1000, 0.1).rate is None  # too little to tell
    for _ in range(100):
        pace = pace.took(1_000_000, 1.0)
    assert pace.rate == pytest.approx(1e6)
    for _ in range(100):
        pace = pace.took(50_000, 1.0)
    assert pace.rate is not None
    assert pace.rate < 60_000
    assert Pace().took(100_000, 1e6).rate == 10_000  # at most ten seconds of silence count


def test_a_receiver_measures_while_something_is_under_way(tmp_path: Path) -> None:
    source, receiver = BlobStore(tmp_path / "from"), Receiver(BlobStore(tmp_path / "to"))
    ref = source.put(bytes(range(256)) * 256 * 20)
    assert receiver.rate is None
    receiver.want(ref, 50.0)
    now, sender = 100.0, Sender(source)  # idle before
    while receiver.wanted:
        for need in receiver.due(now):
            for index, data in sender.requested(need, now):
                now += 0.5
                receiver.chunk(ref.sha256[:16], index, data, now)
        now = max(now, receiver.next_due or now)
    assert receiver.rate == pytest.approx(2 * CHUNK, rel=0.1)


def test_patience_follows_the_usual_time_of_an_answer_between_its_bounds() -> None:
    answers = Answers()
    assert answers.patience(PATIENCE, MOST_PATIENCE) == PATIENCE
    for _ in range(100):
        answers = answers.took(2.0)
    assert answers.seconds == pytest.approx(2.0, rel=1e-4)
    assert answers.patience(PATIENCE, MOST_PATIENCE) == pytest.approx(6.0, rel=1e-4)
    assert Answers(9.0).patience(PATIENCE, MOST_PATIENCE) == MOST_PATIENCE
    assert Answers().took(1e6).seconds == Answers().took(10.0).seconds  # an absent sender is no slow one
    assert Answers().took(-1.0) == Answers()


def _answered(receiver: Receiver, source: BlobStore, data: bytes, lag: float, now: float) -> tuple[int, float]:
    """How often a blob of one chunk is asked for whose sender answers only the first time, after ``lag`` seconds."""
    ref = source.put(data)
    receiver.want(ref, now)
    first, asked, at = now, len(receiver.due(now)), now
    while receiver.next_due is not None and receiver.next_due <= first + lag:
        at = receiver.next_due
        asked += len(receiver.due(at))
    receiver.chunk(ref.sha256[:16], 0, data, first + lag)
    return asked, first + lag


def test_busy_senders_are_not_asked_again_and_again(tmp_path: Path) -> None:
    source, receiver = BlobStore(tmp_path / "from"), Receiver(BlobStore(tmp_path / "to"))
    now, asked = 0.0, []
    for number in range(40):
        times, now = _answered(receiver, source, number.to_bytes(8, "big") * 512, 2.5, now)
        asked.append(times)
    assert asked[0] == 2  # after a second, and not after two more
    assert asked[-1] == 1
    assert receiver.patience == pytest.approx(7.5, rel=0.02)
    for number in range(40, 80):
        _, now = _answered(receiver, source, number.to_bytes(8, "big") * 512, 0.01, now)
    assert receiver.patience == PATIENCE
