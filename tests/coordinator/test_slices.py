"""A rank's columns of an upload are those of the whole upload, whatever store it lies in and however it is read."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from _depots import KINDS, Watch, made
from _s3 import S3
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from coordinator import slices
from coordinator.slices import columns_of
from coordinator.storage.depot import Depot, Span
from coordinator.storage.directory import DirectoryDepot
from coordinator.storage.objects import ObjectDepot
from edgepfl import codec
from edgepfl.errors import CodecError, StoreError
from edgepfl.plan import TensorSpec
from edgepfl.tree import Tree, Trees

NUMBER = itertools.count()
SPECS = {
    "delta": {"bias": TensorSpec((7,)), "kernel": TensorSpec((5, 3, 2)), "one": TensorSpec(())},
    "counts": {"classes": TensorSpec((4,), "int64")},
    "scale": {"": TensorSpec(())},
}


def filled(specs: codec.Expected) -> Trees:
    """Numbers of which no two are alike."""
    count = itertools.count(1)
    return {
        slot: Tree(
            {
                name: np.fromiter(itertools.islice(count, spec.size), spec.dtype, spec.size).reshape(spec.shape)
                for name, spec in tensors.items()
            }
        )
        for slot, tensors in specs.items()
    }


def expected_columns(data: bytes, specs: codec.Expected, cut: Sequence[str], rank: int, ranks: int) -> Trees:
    """The oracle: everything decoded, then cut."""
    whole = codec.decode(data, specs)
    return {
        slot: tree.map(lambda t: t.ravel()[t.size * rank // ranks : t.size * (rank + 1) // ranks])
        if slot in cut
        else tree
        for slot, tree in whole.items()
    }


def assert_same(found: Trees, meant: Trees) -> None:
    assert found.keys() == meant.keys()
    for slot, tree in meant.items():
        assert found[slot].keys() == tree.keys()
        for name, tensor in tree.items():
            mine = found[slot][name]
            assert (mine.dtype, mine.shape, mine.tolist()) == (tensor.dtype, tensor.shape, tensor.tolist())
            assert mine.flags.writeable


@pytest.fixture(params=[1 << 20, 0], ids=["whole", "ranges"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether uploads are so small that they are read whole."""
    monkeypatch.setattr(slices, "WHOLE", request.param)


@pytest.fixture(params=KINDS)
def depot(request: pytest.FixtureRequest, s3: Callable[[], S3], tmp_path: Path) -> Depot:
    return made(request.param, f"slices-{next(NUMBER)}", tmp_path, Watch(), s3)


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("ranks", [1, 2, 3, 11])  # of eleven, some have nothing of a small tensor
def test_the_columns_are_those_of_the_whole(depot: Depot, ranks: int) -> None:
    data = codec.encode(filled(SPECS))
    sha256 = depot.keep(data)
    for rank in range(ranks):
        for cut in ((), ("delta",), ("delta", "counts", "scale")):
            found = columns_of(depot, sha256, SPECS, cut, rank=rank, ranks=ranks)
            assert_same(found, expected_columns(data, SPECS, cut, rank, ranks))


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.text(max_size=8), st.builds(TensorSpec, SHAPES, st.sampled_from(["float32", "int64"])), min_size=1, max_size=5
)


@given(st.dictionaries(st.sampled_from(["a", "b"]), TENSORS, min_size=1), st.integers(1, 6), st.booleans())
def test_any_model_is_cut(specs: dict[str, dict[str, TensorSpec]], ranks: int, short: bool) -> None:  # noqa: FBT001  drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "WHOLE", 0)
        patch.setattr(slices, "HEAD", 8 if short else 1 << 14)  # whether the header needs a second look
        depot = ObjectDepot(MemoryStore(), "memory")
        data = codec.encode(filled(specs))
        sha256 = depot.keep(data)
        for rank in range(ranks):
            found = columns_of(depot, sha256, specs, ["a"], rank=rank, ranks=ranks)
            assert_same(found, expected_columns(data, specs, ["a"], rank, ranks))


def of_header(header: object, body: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def record(begin: int, end: int, shape: Sequence[int] = (4,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "no header": bytes(40),
    "a header longer than all": (1 << 62).to_bytes(8, "little") + bytes(40),
    "a header a little longer than all": (100).to_bytes(8, "little") + bytes(40),
    "no JSON": of_header(b"\xff{"),
    "another tensor": of_header({"x/v": record(0, 16)}),
    "one more": of_header({"x/w": record(0, 16), "x/v": record(0, 16)}),
    "another shape": of_header({"x/w": record(0, 16, (2, 2))}),
    "another dtype": of_header({"x/w": record(0, 16, dtype="I32")}),
    "outside": of_header({"x/w": record(100, 116)}),
    "before": of_header({"x/w": record(-16, 0)}),
    "too short": of_header({"x/w": record(0, 16)}, bytes(12)),
    "too long": of_header({"x/w": record(0, 16)}, bytes(20)),
    "far too long": of_header({"x/w": record(0, 16)}, bytes((1 << 20) + 100)),
}


@pytest.mark.usefixtures("how")
@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_an_upload_that_lies_is_refused_as_the_codec_refuses_it(data: bytes) -> None:
    specs = {"x": {"w": TensorSpec((4,))}}
    depot = ObjectDepot(MemoryStore(), "memory")
    sha256 = depot.keep(data)
    with pytest.raises(CodecError) as meant:
        codec.decode(data, specs, where="upload of pi-07")
    with pytest.raises(CodecError) as caught:
        columns_of(depot, sha256, specs, ["x"], rank=1, ranks=2, where="upload of pi-07")
    assert str(caught.value) == str(meant.value)
    if len(data) > codec.HEADER_LIMIT + 16:
        assert "at most" in str(caught.value)


def test_an_upload_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is missing"):
        columns_of(DirectoryDepot(tmp_path), "0" * 64, SPECS, (), rank=0, ranks=1)


class Counting(ObjectDepot):
    """Remembers what was asked for."""

    asked: list[Sequence[Span]]

    def read_ranges(self, sha256: str, spans: Sequence[Span]) -> list[memoryview]:
        self.asked.append(spans)
        return super().read_ranges(sha256, spans)


def test_a_rank_reads_its_share_of_a_large_upload_and_the_header() -> None:
    specs = {"x": {f"layer{number}": TensorSpec((300, 1000)) for number in range(4)}}
    depot = Counting(MemoryStore(), "memory")
    sha256 = depot.keep(codec.encode(filled(specs)))
    for rank in range(4):
        depot.asked = []
        columns_of(depot, sha256, specs, ["x"], rank=rank, ranks=4)
        head, columns = depot.asked  # two requests, of which the library makes as few as pay
        assert head == [(0, slices.HEAD)]
        assert [length for _, length in columns] == [300_000] * 4
    assert hashlib.sha256(depot.read(sha256)).hexdigest() == sha256
