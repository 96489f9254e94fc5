from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl import bundle, codec
from edgepfl.bundle import Bundle
from edgepfl.errors import BundleError, CodecError
from edgepfl.plan import (
    BatchPlan,
    Entry,
    ExampleSpec,
    Graph,
    Kind,
    Plan,
    Port,
    Reduce,
    Role,
    SlotPlan,
    TensorSpec,
)
from edgepfl.tree import Tree

MODEL = {"bias": TensorSpec((2,)), "weight": TensorSpec((3, 2))}
GRAPH = Graph(
    inputs=(Port("w.bias", Kind.SLOT, "w", TensorSpec((2,)), "bias"), Port("lr", Kind.HYPER, "lr", TensorSpec(()))),
    outputs=(Port("x.bias", Kind.SLOT, "x", TensorSpec((2,)), "bias"),),
)
GOLDEN = {
    "in": Tree({"w.bias": np.array([1, 2], np.float32), "lr": np.array(0.5, np.float32)}),
    "out": Tree({"x.bias": np.array([3, 4], np.float32)}),
    "allowed": Tree({"x.bias": np.array(1e-4, np.float32)}),
}
PLAN = Plan(
    algorithm="fedavg",
    fixed={"inner_steps": 0},
    hyper={"lr": 0.05},
    server={"weighting": "examples"},
    slots={"w": SlotPlan(Role.DOWN, MODEL), "delta": SlotPlan(Role.UP, MODEL, reduce=Reduce.MEAN)},
    graphs={Entry.STEP: GRAPH},
    batch=BatchPlan(4, (ExampleSpec((3,)),), ExampleSpec((), "int64", high=2)),
    model=MODEL,
    models=("own",),
    title="mlp",
)
GOOD = Bundle(
    PLAN,
    Tree({"bias": np.array([0.5, -0.0], np.float32), "weight": np.arange(6, dtype=np.float32).reshape(3, 2)}),
    {"onnx": {Entry.STEP: b"a graph"}},
    {Entry.STEP: codec.encode(GOLDEN)},
)
DATA = bundle.pack(GOOD)


def members(**changed: bytes | None) -> dict[str, bytes]:
    """A good bundle's members by name, some changed; None leaves one out."""
    with zipfile.ZipFile(io.BytesIO(DATA)) as archive:
        whole = {info.filename: archive.read(info) for info in archive.infolist()}
    names = {"plan": "plan.json", "model": "model.safetensors", "step": "graphs/onnx/step"}
    for key, content in changed.items():
        whole.pop(names[key])
        if content is not None:
            whole[names[key]] = content
    return whole


def archive_of(contents: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)  # not the time of day, which would be in the bytes
    return buffer.getvalue()


def test_what_was_packed_comes_back() -> None:
    back = bundle.unpack(DATA)
    assert back.plan == PLAN
    assert {name: t.tobytes() for name, t in back.model.items()} == {n: t.tobytes() for n, t in GOOD.model.items()}
    assert (back.graphs, back.golden) == (GOOD.graphs, GOOD.golden)
    inputs, outputs, allowed = bundle.golden_vectors(GRAPH, back.golden[Entry.STEP], where="golden")
    assert allowed["x.bias"] == np.float32(1e-4)
    assert (inputs["w.bias"].tolist(), inputs["lr"].shape, outputs["x.bias"].tolist()) == ([1, 2], (), [3, 4])


def test_the_same_bundle_gives_the_same_bytes() -> None:
    assert bundle.pack(bundle.unpack(DATA)) == DATA
    slots = dict(reversed(PLAN.slots.items()))
    assert bundle.pack(msgspec.structs.replace(GOOD, plan=msgspec.structs.replace(PLAN, slots=slots))) == DATA
    assert bundle.pack(msgspec.structs.replace(GOOD, golden={})) != DATA


def test_members_carry_no_date() -> None:
    with zipfile.ZipFile(io.BytesIO(DATA)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        names = archive.namelist()
    assert names == sorted(names)
    assert set(names) == {"plan.json", "model.safetensors", "graphs/onnx/step", "golden/step.safetensors"}


def test_golden_vectors_must_be_the_graphs() -> None:
    with pytest.raises(CodecError, match="'in/lr' is missing") as caught:
        bundle.golden_vectors(GRAPH, codec.encode({**GOLDEN, "in": GOLDEN["in"].like(["w.bias"])}), where="golden")
    assert caught.value.where == "golden"


def plan_json(**changes: Any) -> bytes:  # noqa: ANN401  any JSON
    return msgspec.json.encode(msgspec.to_builtins(PLAN) | changes)


OTHER_MODEL = codec.encode({"model": Tree({"bias": np.zeros(2, np.float32)})})
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "no plan": (members(plan=None), "plan.json is missing"),
    "no model": (members(model=None), "model.safetensors is missing"),
    "no graph": (members(step=None) | {"graphs/onnx/begin": b"g"}, "the onnx graphs are not those of the plan"),
    "one graph more": (members() | {"graphs/onnx/tune": b"g"}, "the onnx graphs are not those of the plan"),
    "an unknown graph": (members() | {"graphs/onnx/destroy": b"g"}, "'destroy' is no graph"),
    "unknown golden vectors": (members() | {"golden/destroy.safetensors": b"g"}, "'destroy' is no graph"),
    "the model of another": (members(model=OTHER_MODEL), "model.safetensors: tensor 'model/weight' is missing"),
    "a damaged model": (members(model=b"\xff" * 40), "model.safetensors: not safetensors"),
    "an unknown member": (members() | {"setup.py": b"x"}, "'setup.py' does not belong"),
    "an unknown runtime": (members() | {"graphs/pickle/step": b"x"}, "'graphs/pickle/step' does not belong"),
    "a parent path": (members() | {"../plan.json": b"x"}, "'../plan.json' does not belong"),
    "a path inside": (members() | {"graphs/onnx/../../x": b"x"}, "does not belong"),
    "an absolute path": (members() | {"/etc/passwd": b"x"}, "'/etc/passwd' does not belong"),
    "a line feed": (members() | {"plan.json\n": b"x"}, "does not belong"),
    "a folder": (members() | {"graphs/": b""}, "'graphs/' does not belong"),
    "too many members": (members() | {f"x{k}": b"" for k in range(70)}, "at most 64"),
    "another format": (members(plan=plan_json(format=3)), "format 3, and this edgepfl reads 2"),
    "an empty plan": (members(plan=b""), "plan.json is not a plan"),
    "a list": (members(plan=b"[]"), "plan.json is not a plan"),
    "no utf-8": (members(plan=b'{"format": 2, "algorithm": "\xff"}'), "plan.json is not a plan"),
    "deep json": (members(plan=b'{"z":' + b"[" * 99_999 + b"]" * 99_999 + b"}"), "plan.json is not a plan"),
    "an unknown role": (members(plan=plan_json(slots={"w": {"role": "spy", "tensors": {}}})), "not a plan"),
    "a huge tensor": (members(plan=plan_json(model={"w": {"shape": [1 << 24, 1 << 24]}})), "not a plan"),
    "a huge minibatch": (
        members(plan=plan_json(batch={"size": 1 << 40, "x": {"shape": []}, "y": {"shape": []}})),
        "not",
    ),
    "a plan without slots": (members(plan=b'{"format": 2, "algorithm": "fedavg"}'), "plan.json is not a plan"),
    "a plan without a format": (members(plan=b'{"algorithm": "fedavg"}'), "format 1, and this edgepfl reads 2"),
}


@pytest.mark.parametrize(("contents", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(contents: dict[str, bytes], problem: str) -> None:
    with pytest.raises(BundleError) as caught:
        bundle.unpack(archive_of(contents), where="ditto.bundle")
    assert problem in caught.value.what
    assert caught.value.where == "ditto.bundle"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_only_the_plain_methods_are_unpacked(method: int) -> None:
    with pytest.raises(BundleError, match="is packed with method"):
        bundle.unpack(archive_of(members(), method))
    assert bundle.unpack(archive_of(members(), zipfile.ZIP_STORED)).plan == PLAN


def test_a_member_twice_is_refused() -> None:
    buffer = io.BytesIO(DATA)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("plan.json", plan_json(algorithm="another"))
    with pytest.raises(BundleError, match="a member is in it twice"):
        bundle.unpack(buffer.getvalue())
    assert bundle.unpack(DATA).plan.algorithm == "fedavg"


def lie_about_size(data: bytes, name: str, size: int) -> bytes:
    """The archive with a member's unpacked size rewritten, in both headers."""
    changed = bytearray(data)
    for signature, name_at, size_at in ((b"PK\x03\x04", 30, 22), (b"PK\x01\x02", 46, 24)):
        start = 0
        while (start := data.find(signature, start)) >= 0:
            if data[start + name_at :].startswith(name.encode()):
                changed[start + size_at : start + size_at + 4] = struct.pack("<I", size)
            start += 4
    return bytes(changed)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MEMBER_LIMIT", 1 << 20)
    bomb = archive_of(members(step=bytes(8 << 20)))
    assert len(bomb) < 64 << 10
    with pytest.raises(BundleError, match="graphs/onnx/step unpacks to 8388608 bytes"):
        bundle.unpack(bomb)
    monkeypatch.setattr(bundle, "MEMBER_LIMIT", 16 << 20)
    assert bundle.unpack(bomb).graphs["onnx"][Entry.STEP] == bytes(8 << 20)
    monkeypatch.setattr(bundle, "TOTAL_LIMIT", 8 << 20)
    with pytest.raises(BundleError, match="it unpacks to more than 8388608 bytes"):
        bundle.unpack(bomb)


def test_a_bomb_that_lies_about_its_size_unpacks_to_no_more_than_it_says() -> None:
    bomb = lie_about_size(archive_of(members(step=bytes(8 << 20))), "graphs/onnx/step", 1000)
    with pytest.raises(BundleError, match="not a bundle file"):
        bundle.unpack(bomb)
    assert lie_about_size(bomb, "graphs/onnx/step", 8 << 20) == archive_of(members(step=bytes(8 << 20)))


def test_bombs_that_share_their_bytes_are_refused() -> None:
    whole = archive_of(members() | {"graphs/onnx/tune": bytes(1000)})
    start = whole.find(b"PK\x03\x04", whole.find(b"graphs/onnx/step"))
    entry = whole.rfind(b"PK\x01\x02", 0, whole.rfind(b"graphs/onnx/tune"))
    first = whole.find(b"PK\x01\x02")
    assert 0 < start < first < entry
    overlapping = bytearray(whole)
    overlapping[entry + 42 : entry + 46] = struct.pack("<I", whole.rfind(b"PK\x03\x04", 0, start))
    with pytest.raises(BundleError, match="not a bundle file"):
        bundle.unpack(bytes(overlapping))


def test_an_encrypted_member_is_refused() -> None:
    locked = bytearray(DATA)
    entry = DATA.find(b"PK\x01\x02")
    locked[entry + 8] |= 1
    locked[DATA.find(b"PK\x03\x04") + 6] |= 1
    with pytest.raises(BundleError, match="not a bundle file") as caught:
        bundle.unpack(bytes(locked))
    assert "edgepfl export" in caught.value.remedy


def test_every_truncation_is_refused() -> None:
    for end in range(0, len(DATA), 3):
        with pytest.raises(BundleError):
            bundle.unpack(DATA[:end])
    with pytest.raises(BundleError):
        bundle.unpack(DATA[:-1])


@given(st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_bytes_give_a_bundle_or_bundle_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(DATA)
    for place, byte in changes:
        data[place] = byte
    try:
        back = bundle.unpack(bytes(data))
    except BundleError as error:
        assert error.what  # noqa: PT017  either outcome is right, and each is looked at
    else:
        assert back.model.keys() == back.plan.model.keys()


@given(st.binary(max_size=300), st.sampled_from(["plan", "model"]))
def test_random_bytes_are_refused(data: bytes, member: str) -> None:
    for candidate in (data, archive_of(members(**{member: data})), b"PK\x03\x04" + data, data + DATA[-22:]):
        with pytest.raises(BundleError):
            bundle.unpack(candidate)
    assert zlib.crc32(data) >= 0


def test_golden_vectors_need_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device leaves them where they are, whatever they would unpack to."""
    bomb = archive_of({**members(), "golden/step.safetensors": bytes(8 << 20)})
    monkeypatch.setattr(bundle, "MEMBER_LIMIT", 1 << 20)
    with pytest.raises(BundleError, match=r"golden/step\.safetensors unpacks to 8388608 bytes"):
        bundle.unpack(bomb)
    opened = bundle.unpack(bomb, golden=False)
    assert (opened.plan, opened.graphs, opened.golden) == (PLAN, GOOD.graphs, {})


def test_a_model_longer_than_its_plan_is_not_unpacked() -> None:
    bomb = archive_of(members(model=bytes(8 << 20)))
    with pytest.raises(BundleError, match=r"model\.safetensors unpacks to more than the plan's \d+ bytes") as caught:
        bundle.unpack(bomb, where="bomb")
    assert caught.value.where == "bomb"
