"""Valid values, from which hostile inputs are made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgepfl import codec
from edgepfl.bundle import Bundle
from edgepfl.eligibility import Conditions
from edgepfl.plan import (
    Amend,
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
    TensorSpecs,
)
from edgepfl.privacy.terms import Terms as Privacy
from edgepfl.secagg import messages as secagg
from edgepfl.secagg.terms import Terms
from edgepfl.tree import Tree, Trees
from edgepfl.wire import (
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

SHA = "0123456789abcdef" * 4
BLOB = BlobRef(SHA, 3, inline=b"abc")
BIG = BlobRef(SHA, 100_000, chunks=b"0123456789abcdef" * 7, chunk_size=16 << 10)
_AT = ("pi-07", 3, "run", 4, 0)  # a device, its session, a run, a round and an attempt
TERMS = Terms(32, 16, 1.0, 1000, ("delta",))
TASK = Task(
    "run", 4, 0, (Member("pi-07", 3), Member("pi-08", -1)), BLOB, BIG, {"lr": 0.05}, 10, 99,
    evaluate=True, tune_steps=0, final=False, deadline=60.0, heartbeat=5.0, patience=30.0, settings={"server_lr": 1.0},
    grid=40, codec="int8", amends=(Amend("h", "delta"),), conditions=Conditions(charging=True), secagg=TERMS,
    privacy=Privacy(1.0, 0.5),
)  # fmt: skip
REPORT = Report(*_AT, 120, 10, BLOB, {"loss": 0.5}, {"train": 1.5}, SHA, (Part("pi-08", 120, 10, {"loss": 0.5}),))
SECAGG = (
    secagg.Keys(b"m" * 32, b"s" * 32),
    secagg.Peers((secagg.Peer("pi-08", secagg.Keys(b"m" * 32, b"s" * 32)),), 1),
    secagg.Dealt((secagg.For("pi-08", b"x" * 80),)),
    secagg.Deliver((secagg.For("pi-08", b"x" * 80),)),
    secagg.Unmask(("pi-08",), ("pi-09",)),
    secagg.Revealed((secagg.Opens("pi-08", b"s" * 32),)),
    secagg.Ask(),
)
MESSAGES: tuple[Message, ...] = (
    Hello(
        "pi-07", 3, ("onnx",), 120, 512, "0.1.0", members=("pi-08", "hub/pi-09"), identity=7, incarnation=8,
        chunk=16 << 10, judged=SHA[:16], unmet=("not charging",),
    ),
    Gone("pi-07", 3),
    REPORT,
    Failed(*_AT, "graph", "it broke"),
    Progress(*_AT, 3, "too hot"),
    Stopped(*_AT, 3),
    Need(SHA, ((0, 2), (4, 9)), 16 << 10, 0.5),
    TASK,
    Commit("run", 4, ("pi-07", "pi-08")),
    Cancel("run", 4, 0, "a person said so", unknown=True),
    RollCall(3, Conditions(charging=True)),
    Order(SHA),
    Done(SHA, SHA),
    Here(2),
    Refused("pi-07", 7, 8, "two agents"),
    SecAgg("pi-07", "run", 4, 0, secagg.encode(SECAGG[0])),
)  # fmt: skip

_DELTA = {
    "bn.mean": TensorSpec((4,)),
    "bias": TensorSpec((5,)),
    "count": TensorSpec((), "int64"),
    "weight": TensorSpec((7, 9)),
    "scale": TensorSpec(()),
}
SPECS: Mapping[str, TensorSpecs] = {"delta": _DELTA, "precision": {"": TensorSpec((3, 2))}}
_MODEL = {"bias": TensorSpec((2,)), "weight": TensorSpec((3, 2))}
_GRAPH = Graph(
    (Port("w.bias", Kind.SLOT, "w", TensorSpec((2,)), "bias"), Port("lr", Kind.HYPER, "lr", TensorSpec(()))),
    (Port("x.bias", Kind.SLOT, "x", TensorSpec((2,)), "bias"),),
)
_BATCH = BatchPlan(4, (ExampleSpec((3,)),), ExampleSpec((), "int64", high=2))


def _ones(specs: TensorSpecs) -> Tree:
    return Tree({name: np.ones(spec.shape, spec.dtype) for name, spec in specs.items()})


TREES: Trees = {slot: _ones(specs) for slot, specs in SPECS.items()}
PLAN = Plan(
    "coded", {}, {}, {}, {name: SlotPlan(Role.UP, specs, reduce=Reduce.MEAN) for name, specs in SPECS.items()}, {},
    _BATCH, {}, ("",), statistics=("bn.mean",),
)  # fmt: skip
"""A plan whose uploads are coded."""

BUNDLE = Bundle(
    Plan(
        "fedavg", {"inner_steps": 0}, {"lr": 0.05}, {"weighting": "examples"},
        {"w": SlotPlan(Role.DOWN, _MODEL), "delta": SlotPlan(Role.UP, _MODEL, reduce=Reduce.MEAN)},
        {Entry.STEP: _GRAPH}, _BATCH, _MODEL, ("own",), title="mlp",
    ),
    _ones(_MODEL),
    {"onnx": {Entry.STEP: b"a graph"}},
    {
        Entry.STEP: codec.encode(
            {
                "in": _ones({"w.bias": TensorSpec((2,)), "lr": TensorSpec(())}),
                "out": _ones({"x.bias": TensorSpec((2,))}),
                "allowed": _ones({"x.bias": TensorSpec(())}),
            }
        )
    },
)  # fmt: skip
