"""What a fault proxy must know of MQTT, and the fates that it deals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from simulators.faults import CALM, Faults, Way
from simulators.faults.acknowledgements import Acknowledgements
from simulators.faults.fate import Fates, end_of
from simulators.faults.packets import (
    Framer,
    Misframed,
    Packet,
    acknowledged,
    flipped,
    introduced,
    published,
    repeated,
)
from simulators.faults.settings import described


def length(value: int) -> bytes:
    """A variable byte integer, by the algorithm of section 1.5.5."""
    out = bytearray()
    while True:
        value, byte = divmod(value, 128)
        out.append(byte | (128 if value else 0))
        if not value:
            return bytes(out)


def publish(topic: bytes, payload: bytes, *, qos: int, number: int, version: int, properties: bytes = b"") -> bytes:
    body = len(topic).to_bytes(2) + topic + (number.to_bytes(2) if qos else b"")
    body += (length(len(properties)) + properties if version == 5 else b"") + payload
    return bytes((0x30 | qos << 1,)) + length(len(body)) + body


def puback(number: int) -> Packet:
    return Packet(b"\x40\x02" + number.to_bytes(2), 2)


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 400))
def test_packets_are_whole_wherever_the_stream_is_cut(payloads: list[bytes], step: int) -> None:
    sent = [publish(b"a/b", each, qos=1, number=7, version=5) for each in payloads]
    stream, framer, found = b"".join(sent), Framer(), []
    for at in range(0, len(stream), step):
        found += framer.feed(stream[at : at + step])
    assert [packet.data for packet in found] == sent


@given(
    st.binary(max_size=40),
    st.binary(max_size=300),
    st.integers(0, 1),
    st.integers(1, 65535),
    st.sampled_from([4, 5]),
    st.binary(max_size=200),
)
def test_the_payload_of_a_publish_is_found(
    topic: bytes, payload: bytes, qos: int, number: int, version: int, properties: bytes
) -> None:
    (packet,) = Framer().feed(publish(topic, payload, qos=qos, number=number, version=version, properties=properties))
    parts = published(packet, version=version)
    assert parts is not None
    assert packet.data[parts.payload :] == payload
    assert parts.number == (number if qos else 0)
    assert packet.qos == qos


def test_lengths_that_contradict_each_other_are_no_publish() -> None:
    assert published(Packet(b"\x32\x03\xff\xff\x00", 2), version=5) is None
    assert published(Packet(b"\x32\x01\x00", 2), version=5) is None


def test_a_length_of_five_bytes_is_no_mqtt() -> None:
    with pytest.raises(Misframed):
        Framer().feed(b"\x30\xff\xff\xff\xff\x01")


def test_a_connect_tells_who_connects_and_how() -> None:
    five = b"\x00\x04MQTT\x05\x02\x00\x1e" + b"\x03\x21\x00\x10" + b"\x00\x05pi-07"
    three = b"\x00\x04MQTT\x04\x02\x00\x1e" + b"\x00\x05pi-07"
    for version, body in ((5, five), (4, three)):
        assert introduced(Packet(b"\x10" + bytes((len(body),)) + body, 2)) == (version, "pi-07")
    assert introduced(Packet(b"\x10\x02\x00\x00", 2)) == (5, "")


def test_a_repeated_packet_says_so_unless_nobody_acknowledges_it() -> None:
    assert repeated(Packet(b"\x32abc", 2))[0] == 0x3A
    assert repeated(Packet(b"\x30abc", 2))[0] == 0x30


@given(st.binary(min_size=1, max_size=20), st.data())
def test_a_flipped_bit_is_one_bit(data: bytes, choice: st.DataObject) -> None:
    bit = choice.draw(st.integers(0, 8 * len(data) - 1))
    changed = int.from_bytes(flipped(data, bit)) ^ int.from_bytes(data)
    assert changed.bit_count() == 1
    assert flipped(flipped(data, bit), bit) == data


@given(st.permutations(range(1, 8)), st.lists(st.integers(1, 7), max_size=5))
def test_acknowledgements_go_on_once_and_in_the_order_of_what_they_acknowledge(
    order: list[int], again: list[int]
) -> None:
    acks = Acknowledgements()
    for number in range(1, 8):
        acks.expect(number)
    passed = [acknowledged(each) for number in [*order, *again] for each in acks.take(puback(number))]
    assert passed == list(range(1, 8))


def test_an_identifier_may_be_used_again() -> None:
    acks = Acknowledgements()
    for _ in range(2):
        acks.expect(5)
        assert [acknowledged(each) for each in acks.take(puback(5))] == [5]
        assert acks.take(puback(5)) == []


def test_after_a_packet_lost_its_shape_everything_goes_through() -> None:
    acks = Acknowledgements()
    acks.expect(1)
    acks.loosen()
    assert len(acks.take(puback(9))) == 1


WILD = Way(delay=(0.0, 1.0), drop=0.5, duplicate=0.5, reorder=0.5, corrupt=0.5, garble=0.5)


def test_the_same_name_has_the_same_fates_and_another_seed_others() -> None:
    def dealt(name: str, way: Way = WILD) -> list[object]:
        fates = Fates(name)
        return [(fates.next(way), fates.next_publish(way)) for _ in range(50)]

    assert dealt("7/pi-1/1/up") == dealt("7/pi-1/1/up")
    assert dealt("7/pi-1/1/up") != dealt("8/pi-1/1/up")
    assert end_of("7/pi-1/1", Faults(cut=(1.0, 2.0))) == end_of("7/pi-1/1", Faults(cut=(1.0, 2.0)))


def test_a_fault_that_is_switched_on_halfway_leaves_the_others_as_they_were() -> None:
    calm, late = Fates("name"), Fates("name")
    for each in (calm, late):
        for _ in range(10):
            each.next_publish(Way(duplicate=0.5))
    after = Way(duplicate=0.5, drop=0.5, reorder=0.5)
    assert [calm.next_publish(Way(duplicate=0.5)).duplicated for _ in range(40)] == [
        late.next_publish(after).duplicated for _ in range(40)
    ]


@pytest.mark.parametrize(("probability", "hits"), [(0.0, 0), (0.3, 300), (1.0, 1000)])
def test_a_probability_is_what_it_says(probability: float, hits: int) -> None:
    fates = Fates("how often")
    found = sum(fates.next_publish(Way(duplicate=probability)).duplicated for _ in range(1000))
    assert abs(found - hits) < 50


@pytest.mark.parametrize("wrong", [{"drop": 1.5}, {"delay": (2.0, 1.0)}, {"rate": -1.0}, {"held": (-1.0, 1.0)}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Way(**wrong)  # type: ignore[arg-type]  # each is a field's


def test_faults_are_told_by_what_differs() -> None:
    assert described(CALM) == "no faults"
    assert described(Faults(up=Way(drop=0.5), cut=(1.0, 2.0))) == "up.drop=0.5, cut=(1.0, 2.0)"
