"""Messages as bytes, committed once: they must decode for ever, and ``encode`` must still give them.

``python tests/edgepfl/test_wire_golden.py write`` writes the files of new examples; it never touches one that exists.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgepfl import wire
from edgepfl.eligibility import Conditions
from edgepfl.plan import Amend
from edgepfl.secagg.terms import Terms
from edgepfl.wire import (
    KINDS,
    BlobRef,
    Cancel,
    Commit,
    Done,
    Failed,
    Gone,
    Hello,
    Here,
    Member,
    Message,
    Need,
    Order,
    Part,
    Progress,
    Refused,
    Report,
    RollCall,
    SecAgg,
    Stopped,
    Task,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "wire"
SHA, OTHER = "0123456789abcdef" * 4, "fedcba9876543210" * 4
INLINE = BlobRef(SHA, 5, inline=b"bytes")
CHUNKED = BlobRef(OTHER, 131_073, chunks=bytes(range(48)))
FINE = BlobRef(SHA, 32_769, chunks=bytes(range(48)), chunk_size=16_384)
ASKED = Conditions(charging=True, max_temperature=75.0, windows=("22:00-06:00",), on_lost="give up")
LOSSES = {"loss": 0.25, "accuracy.own": 0.875, "loss.global": 1.5}

EXAMPLES: dict[str, Message] = {
    "hello": Hello("pi-07", 3, ("onnx",), 120, 512, "0.1.0"),
    "hello-pending": Hello("a" * 36, 1 << 40, ("onnx", "executorch"), 0, 8192, "\u00e9dge", ("watch", 41)),
    "hello-hub": Hello("north", 3, ("onnx",), 300, 512, "0.1.0", members=("pi-07", "shed/pi-01")),
    "hello-identity": Hello("pi-07", 3, ("onnx",), 120, 512, "0.1.0", identity=(1 << 40) - 1, incarnation=77),
    "hello-unmet": Hello(
        "pi-07", 3, ("onnx",), 120, 512, "0.1.0", judged=SHA[:16], unmet=("not charging", "load 2.50, at most 1.00"),
    ),
    "hello-slow": Hello("pi-07", 3, ("onnx",), 120, 512, "0.1.0", chunk=16_384),
    "gone": Gone("pi-07", 3),
    "report": Report("pi-07", 3, "watch", 41, 1, 120, 10, CHUNKED, LOSSES, {"train": 1.5, "load": 0.0}, SHA),
    "report-inline": Report("pi-07", 3, "watch", 0, 0, 120, 10, INLINE, {"loss": -0.0}, {}, OTHER),
    "report-only-evaluated": Report("pi-07", 3, "watch", 2, 0, 120, 0, None, LOSSES, {}, SHA),
    "report-hub": Report(
        "north", 3, "watch", 41, 1, 130, 10, CHUNKED, {}, {}, SHA,
        (Part("pi-07", 120, 10, LOSSES), Part("shed/pi-01", 10, 9)),
    ),
    "failed": Failed("pi-07", 3, "watch", 41, 1, "GraphFailed", "graph step: no such tensor \u2013 export again"),
    "progress": Progress("pi-07", 3, "watch", 41, 1, 7),
    "progress-paused": Progress("pi-07", 3, "watch", 41, 1, 7, "not charging"),
    "stopped": Stopped("pi-07", 3, "watch", 41, 1, 7),
    "need": Need(OTHER, ((0, 1), (2, 3))),
    "need-slow": Need(OTHER, ((0, 1), (2, 3)), 16_384, 4.5),
    "need-nothing": Need(OTHER, ()),
    "task": Task(
        "watch", 41, 1, (Member("pi-07", 40), Member("pi-08", -1)), CHUNKED, INLINE, {"lam": 0.1, "lr": 0.05},
        10, (1 << 63) - 1, True, 5, False, 60.0, 2.5,  # noqa: FBT003  in the order of the wire
    ),
    "task-final": Task("watch", 99, 0, (), CHUNKED, CHUNKED, {}, 0, 0, True, 0, True, 1e9, 0.0),  # noqa: FBT003
    "task-patient": Task("watch", 3, 0, (), CHUNKED, INLINE, {}, 50, 1, False, 0, False, 60.0, 2.5, 30.0),  # noqa: FBT003
    "task-conditions": Task(
        "watch", 3, 0, (), CHUNKED, INLINE, {}, 50, 1, False, 0, False, 60.0, 2.5, conditions=ASKED,  # noqa: FBT003
    ),
    "task-slow": Task("watch", 99, 0, (), FINE, CHUNKED, {}, 0, 0, True, 0, True, 1e9, 0.0),  # noqa: FBT003
    "task-hubs": Task(
        "watch", 3, 0, (Member("north", 2),), CHUNKED, INLINE, {}, 50, 1, False, 0, False, 60.0, 2.5,  # noqa: FBT003
        settings={"server_lr": 0.5, "weighting": "uniform"}, grid=40,
    ),
    "task-coded": Task(
        "watch", 3, 0, (Member("pi-07", 2),), CHUNKED, INLINE, {}, 50, 1, False, 0, False, 60.0, 2.5,  # noqa: FBT003
        codec="int8+zlib", amends=(Amend("c_k", "delta", -20.0, per_step=True), Amend("h", "delta")),
    ),
    "task-secagg": Task(
        "watch", 3, 0, (Member("pi-07", 2),), CHUNKED, INLINE, {}, 50, 1, False, 0, False, 60.0, 2.5,  # noqa: FBT003
        secagg=Terms(64, 28, 1024.0, 1_000_000, ("delta",)),
    ),
    "secagg": SecAgg("pi-07", "watch", 41, 1, b"body"),
    "commit": Commit("watch", 41, ("pi-07", "pi-08")),
    "cancel": Cancel("watch", 41, 1, "the round was abandoned"),
    "cancel-unknown": Cancel("watch", 41, 1, "unknown run", unknown=True),
    "rollcall": RollCall(12),
    "rollcall-conditions": RollCall(12, ASKED),
    "refused": Refused("pi-07", (1 << 40) - 1, 77, "two agents are called pi-07"),
    "order": Order(SHA),
    "done": Done(SHA, OTHER),
    "here": Here(8),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes_are_the_message_and_its_encoding(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    assert wire.decode(data) == EXAMPLES[name]
    assert wire.encode(EXAMPLES[name]) == data


def test_every_kind_has_golden_bytes_and_no_file_is_idle() -> None:
    assert {message.KIND for message in EXAMPLES.values()} == KINDS.keys()
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.bin" for name in EXAMPLES}


def write() -> list[Path]:
    """Write the files that do not exist yet."""
    new = [GOLDEN / f"{name}.bin" for name in EXAMPLES if not (GOLDEN / f"{name}.bin").exists()]
    for path in new:
        path.write_bytes(wire.encode(EXAMPLES[path.stem]))
    return new


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    write()
