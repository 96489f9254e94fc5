"""Targets of the agreement: what crosses the network, and files that go from one machine to another."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO
from random import Random
from typing import Any

import msgpack
import msgspec
import numpy as np
from _fuzz_inputs import Maker, as_json, bytes_of, changed, either, json_of, messages_of, trees_of
from _fuzz_oracle import Bound, Broken, Target, back
from _fuzz_samples import BUNDLE, MESSAGES, PLAN, SECAGG, SHA, SPECS, TREES

from edgepfl import bundle, codec, wire
from edgepfl.bus._window import Fetch, Offer, check_ref, chunk_count, digest
from edgepfl.coding import Coding, codec_of, packing, places
from edgepfl.errors import BundleError, CodecError, ConfigError, TransferError, WireError
from edgepfl.plan import Plan
from edgepfl.secagg import messages as secagg
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.tree import Trees
from edgepfl.wire import BlobRef, Need

_CODECS = ("zlib", "float16", "bfloat16+zlib", "int8", "int4+zlib", "sparse", "topk:0.2+int8", "threshold:0.5+zlib")


def targets() -> tuple[Target, ...]:
    """All of them."""
    return (
        _wire(),
        _codec(),
        _coding(),
        _places(),
        _zlib(),
        _bundle(),
        _plan(),
        _window(),
        _topics(),
        _words(),
        _secagg(),
    )


def _wire() -> Target:
    data = [wire.encode(message) for message in MESSAGES]
    values = [msgpack.unpackb(each) for each in data]
    # 10,000 lists and maps may take 300 bytes each, whatever the bytes of the message
    bound = Bound(base=4 << 20, factor=64)
    return Target(
        "wire", either(bytes_of(data), messages_of(values)), back(wire.decode, wire.encode, WireError), bound, 30
    )


def _secagg() -> Target:
    data = [secagg.encode(each) for each in SECAGG]
    values = [msgpack.unpackb(each) for each in data]

    def read(body: bytes) -> secagg.Said | secagg.Told:
        try:
            return secagg.said(body, where="body")
        except WireError:
            return secagg.told(body, where="body")

    return Target("secagg", either(bytes_of(data), messages_of(values)), back(read, secagg.encode, WireError))


# Tensors.


def _flat(trees: Trees) -> dict[str, bytes]:
    return {f"{slot}/{name}": tensor.tobytes() for slot, tree in trees.items() for name, tensor in tree.items()}


def _same_bits(one: Trees, other: Trees) -> bool:
    return _flat(one) == _flat(other)


def safetensors_of(seed: bytes) -> Maker:
    """Inputs whose header differs from that of a valid one in a few places."""
    length = int.from_bytes(seed[:8], "little")
    header, tensors = msgspec.json.decode(seed[8 : 8 + length]), seed[8 + length :]

    def write(value: Any) -> bytes:  # noqa: ANN401  any header
        text = as_json(value)
        return len(text).to_bytes(8, "little") + text + tensors

    return trees_of([header], write)


def _codec() -> Target:
    seed = codec.encode(TREES)
    check = back(lambda data: codec.decode(data, SPECS), codec.encode, CodecError, _same_bits)
    return Target("codec", either(bytes_of([seed]), safetensors_of(seed)), check, Bound(factor=32), 30)


def _coding() -> Target:
    """The first byte of an input chooses the codec."""
    codings = [Coding(words, PLAN) for words in _CODECS]
    up = {name: tree for name, tree in TREES.items() if name in PLAN.slots}
    seeds = [bytes([number]) + each.encode(up, 7).data for number, each in enumerate(codings)]

    def check(data: bytes) -> bool:
        coding = codings[data[0] % len(codings) if data else 0]
        try:
            found = coding.decode(data[1:])
        except CodecError:
            return False
        if {slot: {name: each.shape for name, each in tree.items()} for slot, tree in found.items()} != shapes:
            raise Broken("an upload of other shapes")
        coded = (each for name, each in found["delta"].items() if name not in PLAN.statistics)
        if not all(np.isfinite(each).all() for each in coded):  # the others cross as they are
            raise Broken("a number that is not finite")
        again = coding.encode(found, 7)
        if coding.codec.lossless and not _same_bits(coding.decode(again.data), again.decoded):
            raise Broken("another upload when it is written and read again")
        return True

    shapes = {name: {key: spec.shape for key, spec in SPECS[name].items()} for name in up}
    return Target("coding", bytes_of(seeds), check, Bound(base=512 << 10, factor=128), 15)


def _places() -> Target:
    size = 300
    found = [np.arange(0, size, step, dtype=np.int64) for step in (1, 2, 7, 100)]
    seeds = [places.encode(each, size) for each in [*found, found[0][:0]]]

    def check(data: bytes) -> bool:
        try:
            decoded, rest = places.decode(memoryview(data), size, size, "places")
        except CodecError:
            return False
        if places.encode(decoded, size) + bytes(rest) != data:
            raise Broken("two spellings of the same places")
        return True

    return Target("places", bytes_of(seeds), check, share=20)


def _zlib() -> Target:
    """Of 4,096 possible bytes no more are made, whatever the packed ones would become."""
    most = 4096
    seeds = [packing.pack(each) for each in (b"", b"abc" * 50, bytes(most), bytes(most + 1), bytes(1 << 20))]
    check = back(lambda data: bytes(packing.unpack(memoryview(data), most, "packed")), packing.pack, CodecError)
    return Target("zlib", bytes_of(seeds), check, Bound(base=512 << 10, factor=8))  # of which packing takes 256 KB


# Bundles.


def archive_of(members: Mapping[str, bytes], *, packed: bool = False) -> bytes:
    """A zip archive of anything."""
    room = BytesIO()
    with zipfile.ZipFile(room, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return room.getvalue()


def _bundle() -> Target:
    seed = bundle.pack(BUNDLE)
    with zipfile.ZipFile(BytesIO(seed)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    plans = json_of([msgspec.json.decode(members["plan.json"])])
    headers = safetensors_of(members["model.safetensors"])

    def rebuilt(random: Random) -> bytes:
        match int(random.random() * 4):
            case 0:
                return archive_of({**members, "plan.json": plans(random)}, packed=random.random() < 0.5)
            case 1:
                return archive_of({**members, "model.safetensors": headers(random)})
            case 2:
                name = random.choice(sorted(members))
                return archive_of({**members, name: changed(members[name], random)})
            case _:
                name = random.choice(sorted(members))
                kept = {key: content for key, content in members.items() if key != name}
                other = random.choice(
                    ("graphs/onnx/predict", "../evil", "/plan.json", name + "x", "golden/step.safetensors")
                )
                return archive_of({**kept, other: members[name]})

    seeds = [seed, archive_of(members)]
    check = back(bundle.unpack, bundle.pack, BundleError, _same_bundle)
    bound = Bound(base=2 << 20, factor=128, steps=20_000, steps_per_byte=64)
    return Target("bundle", either(bytes_of(seeds), bytes_of(seeds), _directory_of(seeds), rebuilt), check, bound, 4)


def _directory_of(seeds: list[bytes]) -> Maker:
    """Archives with another number in a field of their directory or of a member's head."""

    def make(random: Random) -> bytes:
        data = bytearray(random.choice(seeds))
        mark, most = random.choice(((b"PK\1\2", 46), (b"PK\3\4", 30), (b"PK\5\6", 22)))
        starts = [at for at in range(len(data) - 3) if data[at : at + 4] == mark]
        at = random.choice(starts) + 4 + random.randrange(0, most - 4)
        struct.pack_into(
            "<H", data, min(at, len(data) - 2), random.choice((0, 1, 8, 9, 255, 4096, 65535, random.randrange(1 << 16)))
        )
        return bytes(data)

    return make


def _same_bundle(one: bundle.Bundle, other: bundle.Bundle) -> bool:
    tensors = _same_bits({"": one.model}, {"": other.model})
    return tensors and (one.plan, one.graphs, one.golden) == (other.plan, other.graphs, other.golden)


def _plan() -> Target:
    value = msgspec.json.decode(msgspec.json.encode(BUNDLE.plan))
    check = back(lambda data: msgspec.json.decode(data, type=Plan), msgspec.json.encode, _UNREADABLE)
    seeds = [msgspec.json.encode(BUNDLE.plan)]
    return Target("plan", either(bytes_of(seeds), json_of([value])), check, Bound(factor=64), 15)


_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


# The transfer: a script of what a sender and a receiver are told.


def _window() -> Target:
    chunk = 16 << 10
    parts = [bytes([number]) * chunk for number in range(5)] + [b"end"]
    ref = {"sha256": SHA, "size": sum(map(len, parts)), "chunks": b"".join(map(digest, parts)), "chunk": chunk}
    script = {
        "ref": ref,
        "need": {"sha256": SHA, "ranges": [[0, 2], [4, 9]], "chunk": chunk},
        "come": [0, 3, 5, 5, 9],
        "as": [0, 3, 5, 0, 1],
    }

    def check(data: bytes) -> bool:
        try:
            told = msgpack.unpackb(data)
            ref = msgspec.convert(told["ref"], BlobRef, builtin_types=(bytes,))
            need = msgspec.convert(told["need"], Need, builtin_types=(bytes,))
            come = msgspec.convert(told["come"], list[int])
            claimed = msgspec.convert(told["as"], list[int])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgpack.UnpackException):
            return False
        try:
            check_ref(ref)
        except TransferError:
            return False
        _offered(ref, need)
        if not ref.inline:
            _received(
                ref,
                [
                    (index, parts[number % len(parts)])
                    for index, number in zip(claimed, come, strict=False)
                    if index >= 0
                ],
            )
        return True

    bound = Bound(base=512 << 10, steps=20_000, steps_per_byte=64)  # a set of chunks is an integer of up to 4,375 bits
    return Target("window", messages_of([script]), check, bound)


def _offered(ref: BlobRef, need: Need) -> None:
    granted = Offer(ref.size, ref.chunk).grant(need, 1.0)
    count = chunk_count(ref.size, ref.chunk)
    asked = {index for begin, end in need.ranges for index in (begin, end - 1) if begin < end}
    if len(granted) > 16 or any(not 0 <= index < count for index in granted):
        raise Broken(f"{sorted(granted)} of {count} chunks are sent")
    if granted and not asked:
        raise Broken("chunks are sent that nobody asked for")


def _received(ref: BlobRef, come: list[tuple[int, bytes]]) -> None:
    fetch = Fetch(ref)
    count = chunk_count(ref.size, ref.chunk)
    for index, data in come:
        fits = fetch.accepts(index, data)
        named = ref.chunks[16 * index : 16 * index + 16] == digest(data) if index < count else False
        if fits and not named:
            raise Broken(f"chunk {index} of {count} was taken, and is not what was announced")
        if fits:
            fetch = fetch.took(index, 1.0)
    if fetch.have >> count or (fetch.have & fetch.missing) or fetch.have | fetch.missing != (1 << count) - 1:
        raise Broken("chunks that are here and missing, or neither")


# Words.


def _topics() -> Target:
    topics = Topics("fleet")
    addresses = (
        FromDevice("pi-07", "report"),
        ToDevice("pi-07", "task"),
        ToAll("commit"),
        Chunk(SHA[:16], 7),
        Chunk(SHA[:16], 7, "pi-07"),
    )
    seeds = [topics.build(address).encode() for address in addresses]

    def check(data: bytes) -> bool:
        topic = data.decode("utf-8", "replace")
        found = topics.parse(topic)
        if found is not None and topics.build(found) != topic:
            raise Broken("two spellings of one address")
        return found is not None

    return Target("topics", bytes_of(seeds), check)


def _words() -> Target:
    seeds = [words.encode() for words in (*_CODECS, "topk:1e-3", "threshold:1e308")]

    def check(data: bytes) -> bool:
        try:
            found = codec_of(data.decode("utf-8", "replace"))
        except ConfigError:
            return False
        if found.amount != found.amount or not 0 <= found.amount < float("inf"):
            raise Broken(f"an amount of {found.amount}")
        return True

    return Target("words", bytes_of(seeds), check, share=5)
