"""Small ONNX graphs written by hand: FedAvg of a mean estimator, ``x <- x - lr * (x - weighted mean of the batch)``."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from edgepfl.bundle import Bundle
from edgepfl.plan import (
    BatchPlan,
    Entry,
    ExampleSpec,
    Graph,
    Kind,
    Plan,
    Port,
    Reduce,
    TensorSpec,
    down,
    resolve,
    up,
    work,
)
from edgepfl.tree import Tree

SIZE, FEATURES = 4, 3
_FLOAT, _INT = TensorProto.FLOAT, TensorProto.INT64
_MODEL = {"mean": TensorSpec((FEATURES,))}
_VECTOR, _NUMBER = TensorSpec((FEATURES,)), TensorSpec(())

W = Port("w", Kind.SLOT, "w", _VECTOR, "mean")
X = Port("x", Kind.SLOT, "x", _VECTOR, "mean")
X_NEXT = Port("x_next", Kind.SLOT, "x", _VECTOR, "mean")
DELTA = Port("delta", Kind.SLOT, "delta", _VECTOR, "mean")
LR = Port("lr", Kind.HYPER, "lr", _NUMBER)
BATCH_X = Port("batch_x", Kind.BATCH, "x", TensorSpec((SIZE, FEATURES)), "0")
BATCH_Y = Port("batch_y", Kind.BATCH, "y", TensorSpec((SIZE,), "int64"))
WEIGHT = Port("weight", Kind.BATCH, "weight", TensorSpec((SIZE,)))
LOSS = Port("loss", Kind.METRIC, "loss", _NUMBER)
RIGHT = Port("right", Kind.METRIC, "accuracy", _NUMBER)
TOTAL = Port("total", Kind.METRIC, "weight", _NUMBER)
PERSONAL = Port("personal", Kind.MODEL, "personal", _VECTOR, "mean")
PARAMS = Port("params", Kind.MODEL, "", _VECTOR, "mean")

Node = tuple[str, list[str], list[str]]

_MEAN: list[Node] = [
    ("Unsqueeze", ["weight", "one"], ["column"]),
    ("Mul", ["batch_x", "column"], ["weighted"]),
    ("ReduceSum", ["weighted", "zero"], ["sum"]),
    ("ReduceSum", ["weight", "zero"], ["total"]),
    ("Div", ["sum", "total"], ["target"]),
]

GRAPHS = {
    Entry.BEGIN: Graph((W,), (X,)),
    Entry.STEP: Graph((X, LR, BATCH_X, WEIGHT), (X_NEXT, LOSS)),
    Entry.FINISH: Graph((W, X), (DELTA,)),
    Entry.MODELS: Graph((W,), (PERSONAL,)),
    Entry.EVALUATE: Graph((PARAMS, BATCH_X, BATCH_Y, WEIGHT), (LOSS, RIGHT, TOTAL)),
}

_NODES: dict[Entry, list[Node]] = {
    Entry.BEGIN: [("Identity", ["w"], ["x"])],
    Entry.STEP: [
        *_MEAN,
        ("Sub", ["x", "target"], ["gradient"]),
        ("Mul", ["gradient", "lr"], ["move"]),
        ("Sub", ["x", "move"], ["x_next"]),
        ("ReduceL1", ["gradient", "zero"], ["loss"]),
    ],
    Entry.FINISH: [("Sub", ["x", "w"], ["delta"])],
    Entry.MODELS: [("Identity", ["w"], ["personal"])],
    Entry.EVALUATE: [
        *_MEAN,
        ("Sub", ["params", "target"], ["apart"]),
        ("ReduceL1", ["apart", "zero"], ["distance"]),
        ("Mul", ["distance", "total"], ["loss"]),
        ("Cast", ["batch_y"], ["labels"]),
        ("Mul", ["labels", "weight"], ["counted"]),
        ("ReduceSum", ["counted", "zero"], ["right"]),
    ],
}


def onnx_bytes(entry: Entry) -> bytes:
    """One graph's file."""
    graph = GRAPHS[entry]
    used = {name for _, inputs, _ in _NODES[entry] for name in inputs}
    constants = [helper.make_tensor(name, _INT, [1], [value]) for name, value in (("zero", 0), ("one", 1))]
    model = helper.make_model(
        helper.make_graph(
            [_node(*node) for node in _NODES[entry]],
            str(entry),
            [_info(port) for port in graph.inputs],
            [_info(port) for port in graph.outputs],
            [constant for constant in constants if constant.name in used],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    data: bytes = model.SerializeToString()
    return data


def _node(kind: str, inputs: list[str], outputs: list[str]) -> NodeProto:
    extra = {"keepdims": 0} if kind.startswith("Reduce") else {"to": _FLOAT} if kind == "Cast" else {}
    return helper.make_node(kind, inputs, outputs, **extra)


def _info(port: Port) -> ValueInfoProto:
    kind = _INT if port.spec.dtype == "int64" else _FLOAT
    return helper.make_tensor_value_info(port.name, kind, list(port.spec.shape))


def bundle() -> Bundle:
    """The whole bundle."""
    slots = {"w": down(), "x": work(), "delta": up(Reduce.MEAN)}
    plan = Plan(
        algorithm="fedavg",
        fixed={},
        hyper={"lr": 0.5},
        server={},
        slots=resolve(slots, _MODEL, ()),
        graphs=dict(GRAPHS),
        batch=BatchPlan(SIZE, (ExampleSpec((FEATURES,)),), ExampleSpec((), "int64")),
        model=dict(_MODEL),
        models=("personal",),
    )
    model = Tree({"mean": np.zeros(FEATURES, np.float32)})
    return Bundle(plan, model, {"onnx": {entry: onnx_bytes(entry) for entry in GRAPHS}}, {})
