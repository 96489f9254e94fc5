"""The longest inputs that may come, filled with what grows most when it is read, and the memory that this takes."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from _fuzz_agreement import archive_of
from _fuzz_samples import BUNDLE, SPECS

from edgepfl import bundle, codec, wire
from edgepfl.coding import packing
from edgepfl.errors import BundleError, CodecError, WireError

MEGABYTE = 1 << 20


def taken(read: Callable[[], object], refusal: type[Exception]) -> int:
    """Bytes at the peak, of an input that is refused."""
    with pytest.raises(refusal):
        read()  # what is made at the first use does not count
    tracemalloc.start()
    try:
        with pytest.raises(refusal):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def array(items: bytes, size: int) -> bytes:
    """An array of as many of these as fit into so many bytes, in arrays of 4,096."""
    whole, rest = divmod(size // len(items), 4096)
    rows = b"".join(b"\xdc" + count.to_bytes(2, "big") + items * count for count in (*[4096] * whole, rest))
    return b"\xdc" + (whole + 1).to_bytes(2, "big") + rows


FILLINGS = {
    "empty lists": b"\x90",
    "empty maps": b"\x80",
    "lists of one": b"\x91\xc0",
    "maps of one": b"\x81\xa0\xc0",
    "maps of one and a longer key": b"\x81\xa2aa\xc0",
    "lists in lists": b"\x91" * 90 + b"\x90",
    "short texts": b"\xa2ab",
    "texts of two bytes a letter": b"\xa3\xc4\x80a",
    "floats": b"\xca\x3f\x80\x00\x00",
    "whole numbers": b"\xcd\x7f\xff",
    "short bytes": b"\xc4\x02ab",
    "nothing": b"\xc0",
}


@pytest.mark.parametrize("filling", FILLINGS.values(), ids=FILLINGS)
@pytest.mark.parametrize("field", [False, True], ids=["in place of the fields", "in an unknown field"])
def test_a_message_takes_few_megabytes_whatever_is_in_it(filling: bytes, *, field: bool) -> None:
    head = b"\x93\x01\xa4gone" + (b"\x81\xa1x" if field else b"")
    data = head + array(filling, wire.MESSAGE_LIMIT - 300)
    assert wire.MESSAGE_LIMIT - 500 < len(data) <= wire.MESSAGE_LIMIT
    assert taken(lambda: wire.decode(data), WireError) < 4 * MEGABYTE  # 32 times the message


def test_a_longer_message_is_not_read() -> None:
    data = bytes(64 * MEGABYTE)
    assert taken(lambda: wire.decode(data), WireError) < 10_000


def test_lists_and_maps_are_limited_and_the_largest_messages_are_not() -> None:
    parts = tuple(wire.Part(f"pi-{number:04}", 1, 1, {"loss": 0.5}) for number in range(wire.MEMBERS_LIMIT))
    report = wire.Report("hub", 1, "r", 0, 0, 1, 1, None, {}, {}, "0" * 64, parts)
    assert wire.decode(wire.encode(report)) == report
    need = wire.Need("0" * 64, tuple((number, number + 1) for number in range(wire.ARRAY_LIMIT)))
    assert wire.decode(wire.encode(need)) == need
    lists = wire.CONTAINERS_LIMIT - 4  # beside those of the message itself
    for extra, said in ((0, "missing required field"), (2, "more than 10000 lists and maps")):
        rows = b"".join(b"\xdc" + n.to_bytes(2, "big") + b"\x90" * n for n in (4000, 4000, lists - 8003 + extra))
        with pytest.raises(WireError, match=said):
            wire.decode(b"\x93\x01\xa4gone\x81\xa1x\x93" + rows)


@pytest.mark.parametrize("text", [b'"":{"dtype":"","shape":[],"data_offsets":[0,0]},', b"[[[[[[[[", b'"a":', b'{"":'])
def test_a_header_grows_little(text: bytes) -> None:
    header = b"{" + text * ((codec.HEADER_LIMIT - 10) // len(text))
    data = len(header).to_bytes(8, "little") + header
    assert taken(lambda: codec.decode(data, SPECS), CodecError) < 8 * codec.HEADER_LIMIT


def test_a_header_of_many_tensors_grows_little() -> None:
    row = '"{:06x}":{{"dtype":"","shape":[],"data_offsets":[0,0]}},'
    header = ("{" + "".join(map(row.format, range(19_000))))[:-1].encode() + b"}"
    assert 0.9 * codec.HEADER_LIMIT < len(header) < codec.HEADER_LIMIT
    data = len(header).to_bytes(8, "little") + header
    assert taken(lambda: codec.decode(data, SPECS), CodecError) < 10 * codec.HEADER_LIMIT


PLANS = {
    "tensors": ("model", '"{:06x}":{{"shape":[]}},'),
    "slots": ("slots", '"{:06x}":{{"role":"up","tensors":{{}}}},'),
    "sizes": ("dims", '"{:06x}":1,'),
    "words": ("hyper", '"{:06x}":1,'),
}


@pytest.mark.parametrize(("field", "row"), PLANS.values(), ids=PLANS)
def test_a_plan_grows_little(field: str, row: str) -> None:
    count = (bundle.PLAN_LIMIT // 8) // len(row.format(0))
    text = f'{{"format":2,"{field}":{{{"".join(map(row.format, range(count)))[:-1]}}}}}'
    data = archive_of({"plan.json": text.encode()})
    assert taken(lambda: bundle.unpack(data), BundleError) < 16 * len(text)


def test_packed_bytes_become_no_more_than_may_be() -> None:
    data = zlib.compress(bytes(64 * MEGABYTE), 9)
    assert taken(lambda: packing.unpack(memoryview(data), 1000, "upload"), CodecError) < MEGABYTE


def archive(entries: int, content: bytes, said: int) -> bytes:
    """A zip of one packed member that its directory names so often, and of which it says so many bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    name, crc = b"plan.json", zlib.crc32(content[:said])
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(packed), said, len(name), 0) + name + packed
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(packed), said, len(name), 0, 0, 0, 0, 0, 0
    )
    directory = (entry + name) * entries
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, len(directory), len(local), 0)
    return local + directory + end


def test_a_member_is_unpacked_no_further_than_it_says() -> None:
    data = archive(1, bytes(64 * MEGABYTE), 10)
    assert taken(lambda: bundle.unpack(data), BundleError) < 2 * MEGABYTE


def test_a_directory_of_many_members_is_not_read() -> None:
    data = archive(60_000, b"{}", 2)
    assert taken(lambda: bundle.unpack(data), BundleError) < MEGABYTE


def test_golden_vectors_are_no_longer_than_their_graph_has_them() -> None:
    with pytest.raises(BundleError, match=r"golden/step.safetensors unpacks to more than the plan's 10486"):
        bundle.unpack(bundle.pack(bundle.Bundle(BUNDLE.plan, BUNDLE.model, BUNDLE.graphs, {**BUNDLE.golden, **LONG})))


LONG = {next(iter(BUNDLE.golden)): bytes(2 * MEGABYTE)}
