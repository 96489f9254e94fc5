from __future__ import annotations

import math
from typing import Any

import msgpack
import msgspec
import pytest
from _messages import messages, of_kind
from hypothesis import given
from hypothesis import strategies as st

from edgepfl import wire
from edgepfl.eligibility import Conditions
from edgepfl.errors import WireError
from edgepfl.plan import Amend
from edgepfl.privacy.terms import Terms as Privacy
from edgepfl.secagg.terms import Terms
from edgepfl.wire import KINDS, BlobRef, Failed, Gone, Hello, Member, Message, Need, Part, Report, Task

SHA = "0123456789abcdef" * 4
BLOB = BlobRef(SHA, 3, inline=b"abc")
HELLO = Hello(
    "pi-07", 3, ("onnx",), 120, 512, "0.1.0", members=("pi-08",), identity=7, incarnation=8, chunk=16 << 10,
    judged="0123456789abcdef", unmet=("not charging",),
)  # fmt: skip
REPORT = Report("pi-07", 3, "run", 4, 0, 120, 10, BLOB, {"loss": 0.5}, {"train": 1.5}, SHA, (Part("pi-08", 120, 10),))
TASK = Task(
    "run", 4, 0, (Member("pi-07", 3),), BLOB, BLOB, {"lr": 0.05}, 10, 99, True, 0, False, 60.0, 5.0, 30.0,  # noqa: FBT003
    {"server_lr": 1.0}, 40, "int8", (Amend("h", "delta"),), Conditions(charging=True),
    Terms(64, 28, 1024.0, 1000, ("delta",)), Privacy(1.5, 0.5, metrics=True),
)  # fmt: skip
FAILED = Failed("pi-07", 3, "run", 4, 0, "graph", "it broke")


def packed(kind: str, fields: object, protocol: object = 1) -> bytes:
    data: bytes = msgpack.packb([protocol, kind, fields])
    return data


def fields_of(message: Message, **changes: object) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    return fields | changes


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_comes_back_whole(kind: type[Message]) -> None:
    @given(of_kind(kind))
    def round_trip(message: Message) -> None:
        data = wire.encode(message)
        back = wire.decode(data)
        assert back == message
        assert type(back) is kind
        assert wire.encode(back) == data
        assert len(data) <= wire.MESSAGE_LIMIT

    round_trip()


ANYTHING = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5), st.lists)


@given(messages(), st.dictionaries(st.text("xyz", min_size=1, max_size=5), ANYTHING, max_size=3))
def test_unknown_fields_are_ignored(message: Message, news: dict[str, object]) -> None:
    fields = fields_of(message)
    assert wire.decode(packed(message.KIND, {**news, **fields})) == message
    assert wire.decode(packed(message.KIND, {**fields, "newer": [{"a": [1, None, b"x"]}, 2.5]})) == message


@given(st.sampled_from([HELLO, REPORT, TASK]), st.randoms())
def test_the_order_of_fields_does_not_matter(message: Message, random: Any) -> None:  # noqa: ANN401  hypothesis's own
    names = list(fields_of(message))
    random.shuffle(names)
    shuffled = {name: fields_of(message)[name] for name in names}
    assert wire.decode(packed(message.KIND, shuffled)) == message
    assert set(shuffled) == set(type(message).__struct_fields__)


@pytest.mark.parametrize("message", [HELLO, REPORT, TASK, FAILED], ids=lambda message: message.KIND)
def test_a_field_without_a_default_must_be_there(message: Message) -> None:
    required = [field.name for field in msgspec.structs.fields(message) if field.required]
    assert len(required) >= 6
    for name in required:
        fields = fields_of(message)
        del fields[name]
        with pytest.raises(WireError, match=f"missing required field `{name}`"):
            wire.decode(packed(message.KIND, fields))


NAN, INFINITY = math.nan, math.inf
WRONG_FIELDS: dict[str, tuple[Message, dict[str, object]]] = {
    "a device of capitals": (HELLO, {"device": "PI"}),
    "a device with a path": (HELLO, {"device": "../pi"}),
    "a device with a line feed": (HELLO, {"device": "pi\n"}),
    "a device too long": (HELLO, {"device": "p" * 37}),
    "a device of bytes": (HELLO, {"device": b"pi"}),
    "a device of none": (HELLO, {"device": None}),
    "a negative count": (HELLO, {"examples": -1}),
    "a count past 2^40": (HELLO, {"examples": (1 << 40) + 1}),
    "a count past 64 bits": (HELLO, {"examples": (1 << 64) - 1}),
    "a count that is a float": (HELLO, {"examples": 3.0}),
    "a count that is a boolean": (HELLO, {"examples": True}),
    "a count that is a string": (HELLO, {"examples": "3"}),
    "a string for an array": (HELLO, {"runtimes": "onnx"}),
    "an empty name": (HELLO, {"agent": ""}),
    "a pair of three": (HELLO, {"pending": ["run", 1, 2]}),
    "a round before none": (REPORT, {"round": -2}),
    "a loss that is no number": (REPORT, {"metrics": {"loss": NAN}}),
    "an infinite loss": (REPORT, {"metrics": {"loss": INFINITY}}),
    "infinite seconds": (REPORT, {"seconds": {"train": -INFINITY}}),
    "a nameless metric": (REPORT, {"metrics": {"": 1.0}}),
    "a metric of text": (REPORT, {"metrics": {"loss": "low"}}),
    "a digest of 63 digits": (REPORT, {"kept": SHA[:-1]}),
    "a digest of capitals": (REPORT, {"kept": SHA.upper()}),
    "a digest with a line feed": (REPORT, {"kept": SHA + "\n"}),
    "a blob without a size": (REPORT, {"upload": {"sha256": SHA}}),
    "a blob of a negative size": (REPORT, {"upload": {"sha256": SHA, "size": -1}}),
    "a blob with text inside": (REPORT, {"upload": {"sha256": SHA, "size": 3, "inline": "YWJj"}}),
    "a deadline that is no number": (TASK, {"deadline": NAN}),
    "a negative deadline": (TASK, {"deadline": -1.0}),
    "a heartbeat for ever": (TASK, {"heartbeat": INFINITY}),
    "an infinite step size": (TASK, {"hyper": {"lr": INFINITY}}),
    "a seed of 64 bits": (TASK, {"seed": 1 << 63}),
    "a flag that is a number": (TASK, {"final": 1}),
    "a member alone": (TASK, {"cohort": [["pi-07"]]}),
    "a member with a bad name": (TASK, {"cohort": [["PI", 3]]}),
    "a detail too long": (FAILED, {"detail": "x" * 257}),
    "half a range": (Need(SHA, ((0, 2),)), {"ranges": [[0]]}),
    "a range of floats": (Need(SHA, ((0, 2),)), {"ranges": [[0.0, 2.0]]}),
}


@pytest.mark.parametrize(("message", "changes"), WRONG_FIELDS.values(), ids=WRONG_FIELDS.keys())
def test_a_value_outside_its_fields_limits_is_refused(message: Message, changes: dict[str, object]) -> None:
    assert wire.decode(packed(message.KIND, fields_of(message))) == message
    with pytest.raises(WireError) as caught:
        wire.decode(packed(message.KIND, fields_of(message, **changes)), where="up/pi-07")
    assert caught.value.where == "up/pi-07"
    assert len(str(caught.value)) < 1000


GONE: dict[Any, Any] = fields_of(Gone("pi", 1))
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "a number": b"\x05",
    "no array": msgpack.packb({"device": "pi"}),
    "two parts": msgpack.packb([1, "gone"]),
    "four parts": msgpack.packb([1, "gone", GONE, 0]),
    "an array of fields": msgpack.packb([1, "gone", ["pi", 1]]),
    "a kind of bytes": msgpack.packb([1, b"gone", GONE]),
    "an unknown kind": packed("shutdown", GONE),
    "the kind of the base class": packed("", GONE),
    "a newer protocol": packed("gone", GONE, protocol=2),
    "true for a protocol": packed("gone", GONE, protocol=True),
    "a protocol of text": packed("gone", GONE, protocol="1"),
    "a protocol of 1.0": packed("gone", GONE, protocol=1.0),
    "bytes after the end": packed("gone", GONE) + b"\x00",
    "two messages": packed("gone", GONE) * 2,
    "an integer for a key": packed("gone", GONE | {7: 1}),
    "bytes for a key": packed("gone", {b"device": "pi", b"session": 1}),
    "none for a key": packed("gone", GONE | {None: 1}),
    "a field twice": b"\x93\x01\xa4gone\x83\xa6device\xa2pi\xa7session\x01\xa7session\x02",
    "an unknown field twice": b"\x93\x01\xa4gone\x84\xa6device\xa2pi\xa7session\x01\xa1a\x01\xa1a\x01",
    "no utf-8": b"\x93\x01\xa4gone\x82\xa6device\xa2\xff\xfe\xa7session\x01",
    "half a surrogate": b"\x93\x01\xa4gone\x82\xa6device\xa3\xed\xa0\x80\xa7session\x01",
    "an extension": b"\x93\x01\xa4gone\x83\xa6device\xa2pi\xa7session\x01\xa1a\xd4\x05\x00",
    "a timestamp": b"\x93\x01\xa4gone\x83\xa6device\xa2pi\xa7session\x01\xa1a\xd6\xff\x00\x00\x00\x00",
    "a timestamp without bytes": b"\x93\x01\xa4gone\x83\xa6device\xa2pi\xa7session\x01\xa1a\xc7\x00\xff",
    "a reserved byte": b"\x93\x01\xa4gone\xc1",
    "deep arrays": b"\x93\x01\xa4gone\x81\xa1a" + b"\x91" * 100_000,
    "deep maps": b"\x93\x01\xa4gone" + b"\x81\xa1a" * 30_000 + b"\xc0",
    "an array of 2^32 - 1": b"\xdd\xff\xff\xff\xff",
    "a map of 2^32 - 1": b"\x93\x01\xa4gone\xdf\xff\xff\xff\xff",
    "a string of 2^32 - 1": b"\x93\x01\xdb\xff\xff\xff\xffgone",
    "binary of 2^32 - 1": b"\x93\x01\xc6\xff\xff\xff\xff\x00",
    "an array past its limit": packed("gone", {**GONE, "a": [0] * (wire.ARRAY_LIMIT + 1)}),
    "a map past its limit": packed("gone", {**GONE, "a": {str(k): 0 for k in range(wire.MAP_LIMIT + 1)}}),
    "a string past its limit": packed("gone", {**GONE, "a": "x" * (wire.STRING_LIMIT + 1)}),
    "a key past its limit": packed("gone", {**GONE, "x" * (wire.STRING_LIMIT + 1): 0}),
    "binary past its limit": packed("gone", {**GONE, "a": bytes(wire.BINARY_LIMIT + 1)}),
    "too long": packed("gone", {**GONE, **{f"a{k}": bytes(60_000) for k in range(3)}}),
    "json": b'[1, "gone", {"device": "pi", "session": 1}]',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n.",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_refused(data: bytes) -> None:
    assert wire.decode(packed("gone", GONE)) == Gone("pi", 1)
    with pytest.raises(WireError) as caught:
        wire.decode(data, where="all/task")
    assert caught.value.where == "all/task"


def test_what_is_just_within_the_limits_is_taken() -> None:
    fields = {
        **GONE,
        "a": [0] * wire.ARRAY_LIMIT,
        "b": {str(k): 0 for k in range(wire.MAP_LIMIT)},
        "c": "x" * wire.STRING_LIMIT,
        "d": bytes(wire.BINARY_LIMIT),
    }
    assert wire.decode(packed("gone", fields)) == Gone("pi", 1)
    inline = BlobRef(SHA, wire.INLINE_LIMIT, inline=bytes(wire.INLINE_LIMIT))
    message = msgspec.structs.replace(TASK, download=inline)
    assert wire.decode(wire.encode(message)) == message


def test_a_newer_protocol_says_who_must_update() -> None:
    with pytest.raises(WireError, match="protocol 2, and this edgepfl speaks 1") as caught:
        wire.decode(packed("gone", GONE, protocol=2))
    assert caught.value.remedy == "Update the older side"


UNSENDABLE: dict[str, Message] = {
    "a bad name": Gone("PI", 1),
    "a detail too long": msgspec.structs.replace(FAILED, detail="x" * 257),
    "half a surrogate": msgspec.structs.replace(FAILED, detail="\udc80"),
    "an integer of 65 bits": Gone("pi", 1 << 64),
    "no finite loss": msgspec.structs.replace(REPORT, metrics={"loss": NAN}),
    "too many metrics": msgspec.structs.replace(REPORT, metrics={f"m{k}": 0.0 for k in range(wire.MAP_LIMIT + 1)}),
    "too large a cohort": msgspec.structs.replace(TASK, cohort=(Member("p", 0),) * (wire.ARRAY_LIMIT + 1)),
    "too long": msgspec.structs.replace(TASK, bundle=BlobRef(SHA, 70_000, bytes(70_000), bytes(70_000))),
}


@pytest.mark.parametrize("message", UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_what_every_receiver_would_refuse_is_not_sent(message: Message) -> None:
    with pytest.raises(WireError) as caught:
        wire.encode(message)
    assert caught.value.where == f"a {message.KIND} to send"


VALID = [wire.encode(message) for message in (HELLO, REPORT, TASK, FAILED, Need(SHA, ((0, 2), (5, 9))))]


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, b"\x93\x01\xa4gone" + data, b"\x93\x01\xa4gone\x82\xa6device" + data):
        with pytest.raises(WireError):
            wire.decode(candidate)


@given(st.sampled_from(VALID), st.data())
def test_mutated_bytes_give_a_message_or_wire_error(valid: bytes, data: st.DataObject) -> None:
    changed = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        changed = changed or bytearray(b"\x00")
    try:
        message = wire.decode(bytes(changed))
    except WireError as error:
        assert error.what  # noqa: PT017  either outcome is right, and each is looked at
    else:
        assert wire.decode(wire.encode(message)) == message


@pytest.mark.parametrize("valid", VALID, ids=["hello", "report", "task", "failed", "need"])
def test_every_truncation_is_refused(valid: bytes) -> None:
    for end in range(len(valid)):
        with pytest.raises(WireError):
            wire.decode(valid[:end])
    assert wire.decode(valid).KIND in KINDS


def test_every_record_is_listed_once_under_its_kind() -> None:
    records = {value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, Message)}
    assert set(KINDS.values()) == records - {Message}
    assert all(kind == record.KIND and record.__name__.lower() == kind for kind, record in KINDS.items())
    assert all(record.__doc__ for record in records)
