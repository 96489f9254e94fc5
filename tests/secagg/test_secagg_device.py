"""What a device does not do, whoever asks: mask twice, reveal both secrets, open two sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from _exchange import Exchange, names, seeded
from hypothesis import given
from hypothesis import strategies as st

from edgepfl import wire
from edgepfl.errors import CodecError, WireError
from edgepfl.secagg import device, messages
from edgepfl.secagg.device import Device, Refuse, Reveal, Say
from edgepfl.secagg.graph import MOST_NEIGHBOURS
from edgepfl.secagg.messages import (
    Ask,
    Body,
    Dealt,
    Deliver,
    For,
    Keys,
    Opens,
    Peer,
    Peers,
    Revealed,
    Told,
    Unmask,
)
from edgepfl.secagg.primitives import KeyPair
from edgepfl.secagg.server import due
from edgepfl.wire import SecAgg

EVERYONE = names(5)
ME, *OTHERS = EVERYONE


@pytest.fixture(scope="module")
def exchanged() -> Device:
    """A device whose shares are exchanged, and whose upload is masked."""
    exchange = Exchange(EVERYONE)
    exchange.begin()
    exchange.mask(ME, np.zeros(3, "<u8"))
    return exchange.devices[ME]


@pytest.fixture(scope="module")
def peers() -> Peers:
    draw = seeded(7)
    keys = [Keys(KeyPair(draw(32)).public, KeyPair(draw(32)).public) for _ in OTHERS]
    return Peers(tuple(map(Peer, OTHERS, keys)), 3)


def fresh() -> Device:
    return device.begin(ME, b"about", seeded(3))[0]


def told(state: Device, message: Told) -> device.Do:
    return device.advance(state, message, seeded(5))[1]


def refused(state: Device, message: Told, words: str) -> None:
    after, what = device.advance(state, message, seeded(5))
    assert isinstance(what, Refuse)
    assert words in what.why
    for another in (message, Ask()):
        assert device.advance(after, another, seeded(5)) == (after, None)  # for good


def test_an_upload_is_masked_once_and_not_before_its_time(exchanged: Device, peers: Peers) -> None:
    with pytest.raises(CodecError, match="masked already"):
        device.mask(exchanged, np.zeros(3, "<u8"))
    for state in (fresh(), device.advance(fresh(), peers, seeded(1))[0]):
        with pytest.raises(CodecError, match="not exchanged yet"):
            device.mask(state, np.zeros(3, "<u8"))


def test_of_each_neighbour_one_secret_is_revealed_and_of_one_sum_alone(exchanged: Device) -> None:
    first = Unmask(tuple(OTHERS[:3]), (OTHERS[3],))
    state, what = device.advance(exchanged, first, seeded(5))
    assert isinstance(what, Reveal)
    held = exchanged.held
    assert [(each.device, each.share) for each in what.body.shares] == [
        *((name, held[name].self_share) for name in OTHERS[:3]),
        (OTHERS[3], held[OTHERS[3]].key_share),
    ]
    assert not state.held  # what was not revealed is gone
    assert told(state, first) == what
    assert told(state, Ask()) == what
    refused(state, Unmask(tuple(OTHERS), ()), "another sum")


@pytest.mark.parametrize(
    ("alive", "gone", "words"),
    [
        (OTHERS, OTHERS[:1], "not each neighbour is named once"),
        (OTHERS[:3], [], "not each neighbour is named once"),
        (OTHERS[:3], ["stranger"], "not each neighbour is named once"),
        ([*OTHERS[:3], OTHERS[0]], OTHERS[3:], "not each neighbour is named once"),
        (OTHERS[:2], OTHERS[2:], "2 neighbours count, and 3 are needed"),
        ([], OTHERS, "0 neighbours count"),
    ],
    ids=["both secrets", "one left out", "a stranger", "one twice", "too few", "itself alone"],
)
def test_what_would_say_too_much_is_refused(alive: list[str], gone: list[str], words: str, exchanged: Device) -> None:
    refused(exchanged, Unmask(tuple(alive), tuple(gone)), words)


def test_nothing_is_opened_before_the_upload_is_masked(exchanged: Device) -> None:
    refused(replace(exchanged, masked=False), Unmask(tuple(OTHERS), ()), "its upload is not in")


def test_shares_are_dealt_once(peers: Peers) -> None:
    state, what = device.advance(fresh(), peers, seeded(1))
    assert isinstance(what, Say)
    assert told(state, peers) == what  # the same again, not other ones of the same secret
    other = msgspec.structs.replace(peers, threshold=4)
    refused(state, other, "other neighbours")


@pytest.mark.parametrize(
    ("count", "threshold", "words"),
    [(1, 1, "too few"), (4, 2, "not more than half"), (4, 1, "not more than half"), (3, 4, "or too many")],
)
def test_shares_are_not_dealt_so_that_few_open_them(count: int, threshold: int, words: str, peers: Peers) -> None:
    refused(fresh(), Peers(peers.peers[:count], threshold), words)


def test_neighbours_are_each_others_and_nobody_twice(peers: Peers) -> None:
    one, two, three, four = peers.peers
    mine = Peer(ME, fresh().keys)
    refused(fresh(), Peers((mine, two, three), 2), "without this device")
    refused(fresh(), Peers((two, one, three), 2), "in order")
    refused(fresh(), Peers((one, two, Peer(three.device, two.keys)), 2), "two devices have one key")
    refused(fresh(), Peers((one, two, Peer(three.device, mine.keys)), 2), "two devices have one key")
    refused(fresh(), Peers((one, two, Peer(four.device, Keys(bytes(32), bytes(32)))), 2), "one key")
    small = Keys(bytes([1, *bytes(31)]), bytes(32))
    refused(fresh(), Peers((one, two, Peer(four.device, small)), 2), "cannot be used")


def test_shares_that_nobody_can_read_harm_their_sender_alone() -> None:
    exchange = Exchange(EVERYONE)
    exchange.begin()
    state, right = exchange.devices[ME], due(exchange.server, ME)
    assert isinstance(right, Deliver)
    refused(state, Deliver((For(OTHERS[0], bytes(80)), *right.parts[1:])), "other shares than before")
    before = replace(state, delivered=None, held={})
    refused(before, Deliver(right.parts[:2]), "2 neighbours, and 3 are needed")
    refused(before, Deliver((*right.parts, For("stranger", bytes(80)))), "of others")
    after, what = device.advance(before, Deliver((For(OTHERS[0], bytes(80)), *right.parts[1:])), seeded(1))
    assert isinstance(what, device.Ready)
    assert set(after.held) == set(OTHERS[1:])
    assert after.partners == tuple(OTHERS)


def test_the_longest_messages_cross() -> None:
    everyone = [f"{number:036}" for number in range(MOST_NEIGHBOURS)]
    keys = Keys(bytes(32), bytes(32))
    parts, shares = tuple(For(n, bytes(80)) for n in everyone), tuple(Opens(n, bytes(32)) for n in everyone)
    longest = Peers(tuple(Peer(n, keys) for n in everyone), 254), Dealt(parts), Deliver(parts), Revealed(shares)
    for body in (*longest, Unmask(tuple(everyone), ()), keys, Ask()):
        message = SecAgg("0" * 36, "r" * 64, 1 << 31, 1 << 40, messages.encode(body))
        assert wire.decode(wire.encode(message)) == message
        read = messages.said if isinstance(body, Keys | Dealt | Revealed) else messages.told
        assert read(message.body, where="test") == body


def test_a_message_before_its_time_means_nothing() -> None:
    assert told(fresh(), Deliver(())) is None
    assert told(fresh(), Ask()) == Say(fresh().keys)


def test_attempts_have_nothing_in_common() -> None:
    draw = seeded(1)
    one, two = (device.begin(ME, b"about", draw)[0] for _ in range(2))
    assert len({one.keys.mask, one.keys.seal, two.keys.mask, two.keys.seal, one.secret, two.secret}) == 6
    for secret in (one.secret, one.mask.private, one.seal.private):
        assert repr(secret) not in repr(one)
        assert secret.hex() not in repr(one)


@given(st.binary(max_size=200), st.sampled_from([messages.said, messages.told]))
def test_any_bytes_are_a_message_or_an_error_of_the_wire(data: bytes, read: Callable[..., Body]) -> None:
    for each in (data, b"\x92\xa5" + data, b"\x92\xa4Keys\xc4\x20" + data, b"\x92\xa6Unmask\x92" + data):
        with contextlib.suppress(WireError):
            body = read(each, where="test")
            assert read(messages.encode(body), where="test") == body


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\xa4Keys\xc4\x01a", b"\x91\xa3Ask\x00", b"\xa3Ask" * 9])
def test_bytes_that_are_no_message_are_an_error_of_the_wire(data: bytes) -> None:
    for read in (messages.said, messages.told):
        with pytest.raises(WireError):
            read(data, where="test")
    with pytest.raises(WireError):
        messages.said(messages.encode(Ask()), where="test")
