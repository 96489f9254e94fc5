"""The sum of masked uploads, without its masks, is the sum of the uploads to the bit, whoever drops out and when."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pytest
from _exchange import Exchange, Vectors, names, random_vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepfl.secagg import device
from edgepfl.secagg.fixed import Words
from edgepfl.secagg.server import Stage

SIZE = 7
STAGES = ("before keys", "after keys", "after shares", "after the masked upload")


def play(exchange: Exchange, vectors: Vectors, lost: Mapping[str, Collection[str]]) -> None:
    """One attempt from its beginning to its end, in which devices vanish at some stages."""
    after_keys, after_shares = set(lost.get("after keys", ())), set(lost.get("after shares", ()))
    exchange.gone |= after_keys  # they hear nothing any more once their keys are told
    exchange.begin(lost.get("before keys", ()))
    exchange.lose(after_keys)
    for name in sorted(exchange.server.dealt):
        if name in exchange.here and name not in after_shares:
            exchange.mask(name, vectors(name))
    exchange.lose(after_shares)
    exchange.gone |= set(lost.get("after the masked upload", ()))
    if not exchange.why:
        exchange.close()


def plain(exchange: Exchange, vectors: Vectors) -> Words:
    total = np.zeros_like(vectors(exchange.everyone[0]))
    for name in exchange.server.survivors:
        total += vectors(name)
    return total


@pytest.mark.parametrize("degree", [0, 24], ids=["everyone is a neighbour", "24 neighbours"])
@pytest.mark.parametrize(("stage", "part"), [("", 0.0), *((stage, part) for stage in STAGES for part in (0.1, 0.3))])
def test_the_sum_opens_with_dropouts_at_each_stage(stage: str, part: float, degree: int) -> None:
    everyone = names(40 if degree else 10)
    lost = everyone[1 :: max(1, round(1 / part))] if part else ()
    exchange, vectors = Exchange(everyone, degree=degree), random_vectors(1, SIZE, 64)
    play(exchange, vectors, {stage: lost[: round(part * len(everyone))]})
    assert (exchange.why, exchange.server.stage) == ("", Stage.OPENED)
    counted = len(everyone) if stage == STAGES[3] else len(everyone) - round(part * len(everyone))
    assert len(exchange.server.survivors) == counted
    assert np.array_equal(exchange.total(), plain(exchange, vectors))


@settings(max_examples=15)
@given(
    count=st.integers(3, 40),
    degree=st.sampled_from([0, 0, 16, 30]),
    bits=st.sampled_from([32, 64]),
    seed=st.integers(0, 1 << 32),
    twice=st.booleans(),
    data=st.data(),
)
def test_either_the_sum_is_exact_or_nothing_is_revealed(
    count: int,
    degree: int,
    bits: int,
    seed: int,
    twice: bool,  # noqa: FBT001  hypothesis gives it by name
    data: st.DataObject,
) -> None:
    everyone = names(count)
    fates = data.draw(st.lists(st.sampled_from([*STAGES, *["stays"] * 12]), min_size=count, max_size=count))
    lost = {stage: [n for n, fate in zip(everyone, fates, strict=True) if fate == stage] for stage in STAGES}
    exchange, vectors = Exchange(everyone, seed, degree=degree, twice=twice), random_vectors(seed, SIZE, bits)
    play(exchange, vectors, lost)
    if exchange.server.stage is Stage.OPENED:
        assert np.array_equal(exchange.total(), plain(exchange, vectors))
    else:
        too_few = len(exchange.server.revealed) < exchange.server.threshold + 1
        assert exchange.why or too_few or degree, "it should have opened"
        if exchange.why:
            assert not exchange.server.revealed
            assert all(each.unmask is None for each in exchange.devices.values())


@pytest.mark.parametrize("stage", STAGES[:3])
def test_below_two_thirds_the_attempt_is_given_up_and_nobody_reveals_anything(stage: str) -> None:
    exchange = Exchange(names(10), least=7)
    play(exchange, random_vectors(2, SIZE, 64), {stage: names(10)[:4]})
    assert "6 devices" in exchange.why or "of 10 are left" in exchange.why
    assert not exchange.server.revealed
    assert all(each.unmask is None for each in exchange.devices.values())


def test_too_few_answers_open_nothing() -> None:
    exchange = Exchange(names(9))
    play(exchange, random_vectors(3, SIZE, 64), {STAGES[3]: names(9)[:5]})
    assert exchange.server.stage is Stage.UNMASKING
    assert len(exchange.server.revealed) == 4


def test_the_masks_are_there() -> None:
    """A planted fault: whoever leaves one mask on, or takes another one off, gets something else."""
    exchange, vectors = Exchange(names(5)), random_vectors(4, SIZE, 64)
    play(exchange, vectors, {"after shares": names(5)[:1]})
    total = exchange.total()
    masks = exchange.masks()
    assert len(masks) == 4 + 4  # the survivors' own, and those that each has in common with the dropout
    for each in masks:
        off = total.copy()
        each.put_on(off)
        assert not np.any(off == total)
    for name in exchange.server.survivors:
        assert not np.any(exchange.uploads[name] == vectors(name))


def test_a_device_that_was_started_anew_is_left_out() -> None:
    exchange = Exchange(names(6))
    exchange.begin()
    again, said = device.begin("pi-002", b"", exchange.draw)
    assert isinstance(said, device.Say)
    exchange.devices["pi-002"] = again
    exchange.hear("pi-002", said.body)
    assert exchange.gone == {"pi-002"}
    vectors = random_vectors(5, SIZE, 64)
    for name in sorted(exchange.here):
        exchange.mask(name, vectors(name))
    exchange.close()
    assert np.array_equal(exchange.total(), plain(exchange, vectors))


def test_a_server_that_was_set_down_after_any_stage_goes_on() -> None:
    """What the journal has is enough."""
    import msgspec  # noqa: PLC0415  only here

    from edgepfl.secagg.server import Close, Server, advance, due  # noqa: PLC0415  likewise

    exchange, vectors = Exchange(names(5)), random_vectors(6, SIZE, 32)
    exchange.begin()
    for name in names(5):
        exchange.mask(name, vectors(name))
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(exchange.server), type=Server)
    assert stored == exchange.server
    exchange.server, _ = advance(stored, Close(names(5)))
    exchange.server = msgspec.msgpack.decode(msgspec.msgpack.encode(exchange.server), type=Server)
    for name in names(5):
        exchange.tell(name, due(exchange.server, name))
    assert np.array_equal(exchange.total(), plain(exchange, vectors))


def test_who_is_lost_before_keys_are_fixed_does_not_count() -> None:
    """Six of ten go on among themselves: thresholds are of those who are in it."""
    exchange, vectors = Exchange(names(10)), random_vectors(7, SIZE, 64)
    play(exchange, vectors, {"after keys": names(10)[:4]})
    assert set(exchange.server.keys) == set(names(10)[4:])
    assert exchange.server.threshold == 3
    assert np.array_equal(exchange.total(), plain(exchange, vectors))
