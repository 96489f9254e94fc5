from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from edgepfl.topics import (
    Address,
    Chunk,
    FromAggregator,
    FromDevice,
    ToAggregator,
    ToAll,
    ToDevice,
    Topics,
    check_name,
)
from edgepfl.wire import KINDS

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?", fullmatch=True)
KIND = st.sampled_from(sorted(KINDS))
SHA16 = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
INDEX = st.integers(0, (1 << 20) - 1)
ADDRESSES: st.SearchStrategy[Address] = st.one_of(
    st.builds(FromDevice, NAMES, KIND),
    st.builds(ToDevice, NAMES, KIND),
    st.builds(ToAll, KIND),
    st.builds(Chunk, SHA16, INDEX),
    st.builds(Chunk, SHA16, INDEX, NAMES),
    st.builds(FromAggregator, KIND),
    st.builds(ToAggregator, KIND),
)


@given(NAMES, ADDRESSES)
def test_parsing_undoes_building(fleet: str, address: Address) -> None:
    topic = Topics(fleet).build(address)
    assert Topics(fleet).parse(topic) == address
    assert topic.count("/") + 1 <= 7
    assert len(topic.encode()) <= 256
    assert not set(topic) & set("+#\0")


@given(NAMES, ADDRESSES, ADDRESSES)
def test_other_addresses_have_other_topics(fleet: str, one: Address, two: Address) -> None:
    topics = Topics(fleet)
    assert (topics.build(one) == topics.build(two)) == (one == two)
    assert Topics(f"{fleet[:30]}-x").parse(topics.build(one)) is None


LEVELS = ["up", "down", "all", "blob", "server", "pi", "hello", "0", "ab" * 8, "", "+", "#", ".."]


@given(st.lists(st.sampled_from(LEVELS)))
def test_what_parses_is_what_is_built(levels: list[str]) -> None:
    topics = Topics("fleet")
    topic = "/".join(["edgepfl/1/fleet", *levels])
    address = topics.parse(topic)
    assert address is None or topics.build(address) == topic
    assert topics.parse("/".join(levels)) is None


@given(st.text(max_size=60))
def test_any_other_text_is_no_topic(text: str) -> None:
    topics = Topics("fleet")
    assert topics.parse(text) is None
    address = topics.parse(f"edgepfl/1/fleet/up/{text}")
    assert address is None or topics.build(address) == f"edgepfl/1/fleet/up/{text}"


HOSTILE = [
    "",
    "edgepfl/1/fleet",
    "edgepfl/1/fleet/",
    "edgepfl/1/other/all/task",
    "edgepfl/2/fleet/all/task",
    "/edgepfl/1/fleet/all/task",
    "$SYS/broker/uptime",
    "edgepfl/1/fleet/all/",
    "edgepfl/1/fleet/all/#",
    "edgepfl/1/fleet/all/+",
    "edgepfl/1/fleet/all/task/",
    "edgepfl/1/fleet/all/task\n",
    "edgepfl/1/fleet/all/Task",
    "edgepfl/1/fleet/server/order",
    "edgepfl/1/fleet/server/all/order",
    "edgepfl/1/fleet/server/up/Done",
    "edgepfl/1/fleet/up/pi",
    "edgepfl/1/fleet/up/pi/",
    "edgepfl/1/fleet/up//hello",
    "edgepfl/1/fleet/up/../hello",
    "edgepfl/1/fleet/up/PI/hello",
    "edgepfl/1/fleet/up/pi\n/hello",
    "edgepfl/1/fleet/up/-pi/hello",
    f"edgepfl/1/fleet/up/{'p' * 37}/hello",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcdef",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcdef.",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcdef.-1",
    "edgepfl/1/fleet/up/pi/blob/0123456789ABCDEF.1",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcde.1",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcdef.1.2",
    "edgepfl/1/fleet/up/pi/blob/0123456789abcdef/1",
    "edgepfl/1/fleet/blob/0123456789abcdef/01",
    "edgepfl/1/fleet/blob/0123456789abcdef/1e3",
    "edgepfl/1/fleet/blob/0123456789abcdef/\u0661",  # a digit, but not ours
    "edgepfl/1/fleet/blob/0123456789abcdef/1048576",
    f"edgepfl/1/fleet/blob/0123456789abcdef/{'9' * 5000}",
    "edgepfl/1/fleet/blob/0123456789abcdef\n/1",
    "edgepfl/1/fleet/blob/../1",
]


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_hostile_topic_is_none(topic: str) -> None:
    topics = Topics("fleet")
    assert topics.parse(topic) is None
    assert topics.parse("edgepfl/1/fleet/up/pi/hello") == FromDevice("pi", "hello")


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT's rule for filters with single-level wildcards only."""
    levels, parts = topic_filter.split("/"), topic.split("/")
    return len(levels) == len(parts) and all(a in ("+", b) for a, b in zip(levels, parts, strict=True))


@given(ADDRESSES, NAMES)
def test_each_side_subscribes_to_what_is_for_it_alone(address: Address, device: str) -> None:
    topics = Topics("fleet")
    topic = topics.build(address)
    to_coordinator = any(matches(pattern, topic) for pattern in topics.for_coordinator())
    to_device = any(matches(pattern, topic) for pattern in topics.for_device(device))
    fanned_out = isinstance(address, Chunk) and matches(topics.chunks_of(address.sha16), topic)
    from_coordinator = isinstance(address, Chunk) and not address.device
    assert to_coordinator == (isinstance(address, FromDevice | Chunk) and not from_coordinator)
    assert to_device == (isinstance(address, ToAll) or (isinstance(address, ToDevice) and address.device == device))
    assert fanned_out == from_coordinator
    assert matches(topics.from_aggregator(), topic) == isinstance(address, FromAggregator)
    assert matches(topics.for_aggregator(), topic) == isinstance(address, ToAggregator)


@given(st.builds(FromDevice, NAMES, KIND) | st.builds(Chunk, SHA16, INDEX, NAMES))
def test_a_device_writes_only_under_its_own_up(address: FromDevice | Chunk) -> None:
    topic = Topics("fleet").build(address)
    assert topic.startswith(f"edgepfl/1/fleet/up/{address.device}/")
    assert address.device


@pytest.mark.parametrize("name", ["a", "7", "pi-07", "x" * 36, "a--b"])
def test_good_names(name: str) -> None:
    assert check_name(name, "device") == name
    assert Topics(name).parse(f"edgepfl/1/{name}/all/task") == ToAll("task")


@pytest.mark.parametrize("name", ["", "-", "a-", "-a", "A", "a b", "a/b", "a.b", "a\n", "x" * 37, "\u00e4", "+", "#"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name") as caught:
        check_name(name, "device")
    assert (caught.value.where, "a-z" in caught.value.remedy) == ("device", True)
    with pytest.raises(ConfigError):
        Topics(name)
