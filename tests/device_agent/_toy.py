"""A toy algorithm in NumPy that uses everything a plan can say, its runner, and the same round written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from _inputs import only

from device_agent.data import Examples, minibatches
from device_agent.runners import Array
from edgepfl.plan import (
    MODEL,
    BatchPlan,
    Entry,
    ExampleSpec,
    Graph,
    Kind,
    Plan,
    Port,
    Reduce,
    Shape,
    SlotPlan,
    TensorSpec,
    down,
    given,
    keep,
    noise,
    resolve,
    tell,
    up,
    work,
)
from edgepfl.seeds import derive, generator
from edgepfl.tree import Tree

FEATURES, CLASSES, SIZE = 2, 3, 4
MODEL_SPECS = {"bias": TensorSpec((CLASSES,)), "matrix": TensorSpec((CLASSES, FEATURES))}
SLOTS = {
    "w": down(),
    "x": work(),
    "g": work(),
    "v": keep(first="w"),
    "u": keep(first=MODEL),
    "alpha": keep(Shape.SCALAR, first="alpha_first"),
    "count": keep(Shape.SCALAR, first=2.5),
    "steps": given(),
    "examples": given(),
    "planned": given(),
    "epoch": given(),
    "z": noise(CLASSES),
    "delta": up(Reduce.MEAN),
    "spread": up(Reduce.SUM, Shape.SCALAR),
    "share": tell(),
}
HYPER = {"lr": 0.1, "lam": 0.5, "alpha_first": 0.25}
INNER_STEPS = 2

Values = dict[str, Array]
"""Port name to tensor: "slot/tensor", "hyper:lr", "batch:x0", "model/tensor"."""

Functions = Mapping[Entry, Callable[[Values], Values]]


def number(value: float) -> Array:
    """A tensor without dimensions."""
    return np.asarray(value, np.float32)


def _grad(v: Values, slot: str) -> dict[str, Array]:
    x, y, weight = v["batch:x0"], v["batch:y"], v["batch:weight"]
    apart = (x @ v[f"{slot}/matrix"].T + v[f"{slot}/bias"] - np.eye(CLASSES, dtype=np.float32)[y]) * weight[:, None]
    total = np.float32(weight.sum())
    return {"bias": apart.sum(0) / total, "matrix": apart.T @ x / total}


def begin(v: Values) -> Values:
    return {f"x/{name}": v[f"w/{name}"] for name in MODEL_SPECS}


def prepare(v: Values) -> Values:
    g = _grad(v, "u")
    return {f"g/{name}": np.float32(0.01) * (g[name] + v["z/"][0]) for name in MODEL_SPECS}


def inner(v: Values) -> Values:
    g = _grad(v, "u")
    return {f"u/{name}": v[f"u/{name}"] - v["hyper:lr"] * (g[name] + v[f"g/{name}"]) for name in MODEL_SPECS}


def step(v: Values) -> Values:
    lr, lam, alpha = v["hyper:lr"], v["hyper:lam"], v["alpha/"]
    gx, gv = _grad(v, "x"), _grad(v, "v")
    out = {f"x/{name}": v[f"x/{name}"] - lr * gx[name] for name in MODEL_SPECS}
    out["x/bias"] = out["x/bias"] + np.float32(0.01) * v["z/"]
    out |= {
        f"v/{name}": v[f"v/{name}"] - lr * (gv[name] + lam * (v[f"v/{name}"] - v[f"w/{name}"])) for name in MODEL_SPECS
    }
    out["alpha/"] = np.asarray(alpha * np.float32(0.9))
    left = v["planned/"] - v["steps/"] + v["epoch/"]
    out["count/"] = np.asarray(v["count/"] + left + np.float32(0.001) * v["examples/"])
    out["metric:loss"] = np.asarray(np.abs(out["x/matrix"]).sum())
    return out


def finish(v: Values) -> Values:
    out = {f"delta/{name}": v[f"x/{name}"] - v[f"w/{name}"] for name in MODEL_SPECS}
    share = v["steps/"] / np.maximum(v["planned/"], np.float32(1))
    return out | {"spread/": np.asarray(v["steps/"] * v["alpha/"]), "share/": np.asarray(share)}


def tune(v: Values) -> Values:
    g = _grad(v, "v")
    return {f"v/{name}": v[f"v/{name}"] - v["hyper:lr"] * g[name] + v["z/"][0] * 0 for name in MODEL_SPECS}


def models(v: Values) -> Values:
    out = {f"personal/{name}": v["alpha/"] * v[f"v/{name}"] + v[f"u/{name}"] for name in MODEL_SPECS}
    return out | {f"global/{name}": v[f"w/{name}"] for name in MODEL_SPECS}


def evaluate(v: Values) -> Values:
    logits = v["batch:x0"] @ v["/matrix"].T + v["/bias"]
    weight = v["batch:weight"]
    right = (logits.argmax(1) == v["batch:y"]) * weight
    loss = ((logits - np.eye(CLASSES, dtype=np.float32)[v["batch:y"]]) ** 2).sum(1) * weight
    return {
        "metric:loss": np.asarray(loss.sum(dtype=np.float32)),
        "metric:accuracy": np.asarray(right.sum(dtype=np.float32)),
        "metric:weight": np.asarray(weight.sum()),
    }


FUNCTIONS: Functions = {
    Entry.BEGIN: begin,
    Entry.PREPARE: prepare,
    Entry.INNER: inner,
    Entry.STEP: step,
    Entry.FINISH: finish,
    Entry.TUNE: tune,
    Entry.MODELS: models,
    Entry.EVALUATE: evaluate,
}

_RESOLVED = resolve(SLOTS, MODEL_SPECS, (), HYPER)


def slot_ports(*names: str) -> tuple[Port, ...]:
    return tuple(
        Port(f"{slot}/{tensor}", Kind.SLOT, slot, spec, tensor)
        for slot in names
        for tensor, spec in _RESOLVED[slot].tensors.items()
    )


def hyper_ports(*names: str) -> tuple[Port, ...]:
    return tuple(Port(f"hyper:{name}", Kind.HYPER, name, TensorSpec(())) for name in names)


def metric_ports(*names: str) -> tuple[Port, ...]:
    return tuple(Port(f"metric:{name}", Kind.METRIC, name, TensorSpec(())) for name in names)


def model_ports(name: str) -> tuple[Port, ...]:
    return tuple(Port(f"{name}/{tensor}", Kind.MODEL, name, spec, tensor) for tensor, spec in MODEL_SPECS.items())


BATCH_PORTS = (
    Port("batch:x0", Kind.BATCH, "x", TensorSpec((SIZE, FEATURES)), "0"),
    Port("batch:y", Kind.BATCH, "y", TensorSpec((SIZE,), "int64")),
    Port("batch:weight", Kind.BATCH, "weight", TensorSpec((SIZE,))),
)

GRAPHS = {
    Entry.BEGIN: Graph(slot_ports("w"), slot_ports("x")),
    Entry.PREPARE: Graph((*slot_ports("u", "z"), *BATCH_PORTS), slot_ports("g")),
    Entry.INNER: Graph((*slot_ports("u", "g"), *hyper_ports("lr"), *BATCH_PORTS), slot_ports("u")),
    Entry.STEP: Graph(
        (
            *slot_ports("w", "x", "v", "alpha", "count", "steps", "examples", "planned", "epoch", "z"),
            *hyper_ports("lr", "lam"),
            *BATCH_PORTS,
        ),
        (*slot_ports("x", "v", "alpha", "count"), *metric_ports("loss")),
    ),
    Entry.FINISH: Graph(slot_ports("w", "x", "steps", "planned", "alpha"), slot_ports("delta", "spread", "share")),
    Entry.TUNE: Graph((*slot_ports("v", "z"), *hyper_ports("lr"), *BATCH_PORTS), slot_ports("v")),
    Entry.MODELS: Graph(slot_ports("alpha", "v", "u", "w"), (*model_ports("personal"), *model_ports("global"))),
    Entry.EVALUATE: Graph((*model_ports(""), *BATCH_PORTS), metric_ports("loss", "accuracy", "weight")),
    Entry.PREDICT: Graph(
        (*model_ports(""), BATCH_PORTS[0]),
        (Port("output", Kind.OUTPUT, "output", TensorSpec((SIZE, CLASSES))),),
    ),
}


def plan_of(
    slots: Mapping[str, SlotPlan] | None = None,
    graphs: Mapping[Entry, Graph] | None = None,
    inner_steps: int = INNER_STEPS,
) -> Plan:
    """The toy's plan, or one with other slots or graphs."""
    return Plan(
        algorithm="toy",
        fixed={},
        hyper=dict(HYPER),
        server={},
        slots=dict(_RESOLVED if slots is None else slots),
        graphs=dict(GRAPHS if graphs is None else graphs),
        batch=BatchPlan(SIZE, (ExampleSpec((FEATURES,)),), ExampleSpec((), "int64", high=CLASSES)),
        model=dict(MODEL_SPECS),
        models=("personal", "global"),
        inner_steps=inner_steps,
    )


@dataclass
class ToyRunner:
    """Runs the toy's functions, and checks that it is fed exactly the graph's inputs."""

    plan: Plan
    functions: Functions = field(default_factory=lambda: FUNCTIONS)

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        ports = {port.name: port.spec for port in self.plan.graphs[entry].inputs}
        assert feeds.keys() == ports.keys()
        for name, spec in ports.items():
            assert (feeds[name].shape, str(feeds[name].dtype)) == (spec.shape, spec.dtype), name
        before = {name: array.copy() for name, array in feeds.items()}
        results = self.functions[entry](dict(feeds))
        assert all(np.array_equal(before[name], feeds[name]) for name in feeds)
        return results


def trees(seed: int) -> Tree:
    """A model's tensors, drawn."""
    source = np.random.default_rng(seed)
    return Tree({name: source.standard_normal(spec.shape, dtype=np.float32) for name, spec in MODEL_SPECS.items()})


def examples(train: int = 6, test: int = 5) -> Examples:
    """Data of the toy, drawn; its numbers of rows are no multiples of the minibatch."""
    source = np.random.default_rng(train)
    return Examples(
        source.standard_normal((train, FEATURES), dtype=np.float32),
        source.integers(0, CLASSES, train),
        source.standard_normal((test, FEATURES), dtype=np.float32),
        source.integers(0, CLASSES, test),
    )


@dataclass
class ByHand:
    """A device's round as ``edgepfl.algorithms._base`` words it, on one flat dictionary."""

    state: Values

    @classmethod
    def opened(cls, w: Tree, model: Tree, rows: int, hyper: Mapping[str, float], planned: int = 0) -> ByHand:
        state: Values = {f"hyper:{name}": number(value) for name, value in {**HYPER, **hyper}.items()}
        state |= {f"w/{name}": w[name] for name in w} | {f"v/{name}": w[name] for name in w}
        state |= {f"u/{name}": model[name] for name in model}
        state |= {"alpha/": state["hyper:alpha_first"], "count/": number(2.5)}
        state |= {"examples/": number(rows), "steps/": number(0), "planned/": number(planned)}
        state["epoch/"] = number(len(range(0, rows, SIZE)))
        return cls(state | begin(state))

    def batches(self, data: Examples, steps: int, seed: int) -> None:
        """Steps of training."""
        for done, batch in enumerate(minibatches(data, SIZE, steps, seed)):
            self._put(batch.x[0], batch.y, batch.weight, seed, done)
            self.state |= prepare(self.state)
            for _ in range(INNER_STEPS):
                self.state |= inner(self.state)
            self.state |= step(self.state)
            self.state["steps/"] = number(done + 1)

    def tuned(self, data: Examples, steps: int, seed: int) -> None:
        """Steps of personalisation."""
        for done, batch in enumerate(minibatches(data, SIZE, steps, derive(seed, "tune"))):
            self._put(batch.x[0], batch.y, batch.weight, derive(seed, "tune"), done)
            self.state |= tune(self.state)

    def _put(self, x: Array, y: Array, weight: Array, seed: int, done: int) -> None:
        z = generator(seed, "noise", "z", done).standard_normal(CLASSES, dtype=np.float32)
        self.state |= {"batch:x0": x, "batch:y": y, "batch:weight": weight, "z/": z}

    def slot(self, name: str) -> Values:
        """One slot's tensors."""
        return {key.partition("/")[2]: array for key, array in self.state.items() if key.startswith(f"{name}/")}


def accuracy(matrix: Array, bias: Array, data: Examples) -> float:
    """Over all test rows at once."""
    return float(((only(data.test_x) @ matrix.T + bias).argmax(1) == data.test_y).mean())
