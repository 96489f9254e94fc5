"""The fuzzers find what they are to find, and a short campaign finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import get_args

import msgpack
import msgspec
import pytest
from _fuzz_campaign import Fault, limited, rows, run_batch, shared_out, tried, watched
from _fuzz_command import main
from _fuzz_inputs import as_json, bytes_of, json_of, messages_of
from _fuzz_oracle import Bound, Broken, Check, Target, back
from _fuzz_samples import MESSAGES, SECAGG
from _fuzz_targets import targets

from edgepfl.secagg.messages import Said, Told
from edgepfl.wire import KINDS

TARGETS = targets()
INPUTS = {name: 200 if target.share <= 5 else 1200 for name, target in TARGETS.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_campaign_finds_no_fault(name: str) -> None:
    batch = run_batch(TARGETS[name], seed=1, number=0, inputs=INPUTS[name], every=100)
    assert [fault.what for fault in batch.faults] == []
    assert 0 < batch.accepted < batch.inputs  # else its inputs show nothing


def test_every_kind_of_message_is_sent() -> None:
    assert {type(message) for message in MESSAGES} == set(KINDS.values())
    assert {type(body) for body in SECAGG} == {*get_args(Said), *get_args(Told)}


# Faults that are planted.


def refusing(data: bytes) -> bytes:
    if len(data) > 12:
        raise ValueError("too long")
    return data


def crashing(data: bytes) -> bool:
    return data[0] < data[len(data) // 2] if data != b"quiet" else False


def hungry(data: bytes) -> bool:
    return len(bytes(1 << 20)) > len(data)


def busy(data: bytes) -> bool:
    return sum(min(k, len(data)) for k in range(5000)) > 0


FAULTS: dict[str, tuple[Check, str]] = {
    "an error that nobody declared": (crashing, "IndexError in test_fuzz_campaign.py"),
    "memory": (hungry, "Broken in _fuzz_oracle.py.*1048[0-9]* bytes for an input"),
    "calls": (busy, "Broken in _fuzz_oracle.py.* calls for an input"),
    "another value": (back(refusing, lambda data: data.replace(b"a", b"b"), ValueError), "Broken.*another value"),
    "no value": (back(refusing, lambda data: data * 2, ValueError), "Broken.*cannot be written and read again"),
}


@pytest.mark.parametrize(("check", "said"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found(check: Check, said: str) -> None:
    target = Target("planted", bytes_of([b"a", b"quiet, rather"]), check, Bound(base=1 << 16))
    batch = run_batch(target, seed=1, number=0, inputs=100, every=20)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(*(fault.what for fault in batch.faults))
    again = tried(target, batch.faults[0].data, whole=True)
    assert isinstance(again, Fault)


def greedy(data: bytes) -> bool:
    return bytearray(4 << 30) == data


def stuck(data: bytes) -> bool:
    while len(data) == 0:
        pass
    return True


def test_memory_and_time_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("_fuzz_campaign.MOST_SECONDS", 0.05)
    for check, said in ((greedy, "MemoryError"), (stuck, "Slow")):
        with limited(1 << 30):
            found = tried(watched(Target("planted", lambda _: b"", check)), b"", whole=False)
        assert isinstance(found, Fault)
        assert found.what.startswith(said)


def noting(inputs: list[bytes]) -> Check:
    def check(data: bytes) -> bool:
        inputs.append(data)
        return True

    return check


def test_a_batch_can_be_repeated() -> None:
    seen: list[list[bytes]] = []
    for number in (0, 0, 1):
        inputs: list[bytes] = []
        run_batch(Target("seen", TARGETS["wire"].make, noting(inputs)), seed=3, number=number, inputs=50, every=60)
        seen.append(inputs)
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) > 25


# Inputs.


MAKERS: dict[str, Callable[[Random], bytes]] = {
    "MessagePack": messages_of([{"a": 1, "bc": [1, "x", b"y"]}]),
    "JSON": json_of([{"a": 1, "bc": [1, "x"]}]),
}


@pytest.mark.parametrize("form", MAKERS)
def test_changed_values_have_what_a_parser_must_see(form: str) -> None:
    random = Random(1)
    made = [MAKERS[form](random) for _ in range(6000)]
    key = b"\xa2bc" if form == "MessagePack" else b'"bc"'
    nan = b"\xcb\x7f\xf8\0\0\0\0\0\0" if form == "MessagePack" else b"NaN"
    deep = b"\x91" * 90 if form == "MessagePack" else b"[" * 90
    assert any(each.count(key) > 1 for each in made)  # a key twice
    assert any(key not in each and each.startswith((b"\x81\xa1a", b'{"a"')) for each in made)  # none
    assert any(nan in each for each in made)
    assert any(deep in each for each in made)
    assert any(str((1 << 64) - 1).encode() in each or b"\xcf" + b"\xff" * 8 in each for each in made)
    assert any(b"y" * 1025 in each for each in made)


def test_bytes_are_cut_grown_and_joined() -> None:
    random = Random(1)
    made = [bytes_of([b"0123456789", b"abcdefghij"])(random) for _ in range(2000)]
    assert {b"", b"0123456789"} & set(made)
    assert max(map(len, made)) > 1000
    assert any(b"0123" in each and b"ghij" in each for each in made)
    assert any(b"\xff\xff\xff\xff" in each for each in made)


# The command.


def test_a_campaign_is_continued_and_tells_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--inputs", "10000", "--target", "topics", "--state", str(tmp_path / "state"), "--json"]
    assert main(words) == 0
    first = capsys.readouterr()
    kept = (tmp_path / "state").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "state").read_bytes() == kept  # nothing was run again
    assert capsys.readouterr().out == first.out
    row = msgspec.json.decode(first.out)
    assert (row["target"], row["inputs"], row["faults"]) == ("topics", 10_000, [])


def test_what_cannot_be_run_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", "nothing"]) == 2
    assert "there is no target 'nothing'. There are bundle, " in capsys.readouterr().err
    assert main(["--inputs", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_batches_are_shared_out_and_added_up() -> None:
    pair = [Target("a", bytes_of([b""]), bool, share=30), Target("b", bytes_of([b""]), bool, share=10)]
    assert shared_out(400, pair, batch=10) == {"a": 30, "b": 10}
    assert shared_out(1, pair) == {"a": 1, "b": 1}
    fault = Fault("a", "it broke", b"x")
    one = msgspec.structs.replace(run_batch(pair[0], 0, 0, inputs=5, every=9), faults=(fault,))
    other = msgspec.structs.replace(run_batch(pair[0], 0, 1, inputs=7, every=9), faults=(fault,), memory=99)
    total = rows([one, other])["a"]
    assert (total.inputs, total.memory, total.faults) == (12, 99, (fault,))


def test_an_oracle_takes_what_comes_back() -> None:
    assert back(refusing, bytes, ValueError)(b"abc")
    assert not back(refusing, bytes, ValueError)(b"a" * 13)
    with pytest.raises(Broken):
        back(refusing, bytes, ValueError, same=lambda _, __: False)(b"abc")
    assert msgpack.unpackb(messages_of([[1]])(Random(4)), strict_map_key=False) != [1]
    assert as_json({"a": b"x"}) == b'{"a":"b\'x\'"}'
