from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from _toy import (
    BATCH_PORTS,
    FUNCTIONS,
    GRAPHS,
    ByHand,
    Functions,
    ToyRunner,
    Values,
    examples,
    hyper_ports,
    metric_ports,
    plan_of,
    slot_ports,
    trees,
)

from device_agent.interpreter import Interpreter, Start, Stopped
from edgepfl.errors import GraphFailed, PlanError
from edgepfl.plan import Entry, Graph, Kind, Port, Role, TensorSpec, given, resolve
from edgepfl.tree import Tree

W, MODEL = trees(1), trees(2)
START = Start(down={"w": W}, keep=None, hyper={"lr": 0.2}, seed=7, round=3)


def toy(functions: Functions | None = None) -> Interpreter:
    plan = plan_of()
    return Interpreter(plan, MODEL, ToyRunner(plan, {**FUNCTIONS, **(functions or {})}))


def assert_same(found: Tree, expected: Values) -> None:
    assert set(found) == set(expected)
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_round_is_what_the_algorithms_page_says(steps: int) -> None:
    data = examples()
    by_hand = ByHand.opened(W, MODEL, data.count, {"lr": 0.2}, steps)
    by_hand.batches(data, steps, START.seed)
    by_hand.state |= FUNCTIONS[Entry.FINISH](by_hand.state)
    result = toy().train(START, data, steps)
    assert result.steps == steps
    assert result.metrics.get("share", 0) == (steps > 0)
    assert set(result.upload) == {"delta", "spread"}
    assert set(result.keep) == {"v", "u", "alpha", "count"}
    for name, tree in {**result.upload, **result.keep}.items():
        assert_same(tree, by_hand.slot(name))


def test_first_values_follow_the_slots() -> None:
    kept = toy().train(START, examples(), 0).keep
    assert_same(kept["v"], dict(W))
    assert_same(kept["u"], dict(MODEL))
    assert kept["alpha"].value == np.float32(0.25)
    assert kept["count"].value == np.float32(2.5)


def test_a_hyperparameter_of_the_task_also_sets_first_values() -> None:
    kept = toy().train(replace(START, hyper={"alpha_first": 0.75}), examples(), 0).keep
    assert kept["alpha"].value == np.float32(0.75)
    assert kept["alpha"].value.dtype == np.float32


def test_kept_slots_go_on_from_where_they_were() -> None:
    data, interpreter = examples(), toy()
    first = interpreter.train(START, data, 3)
    second = interpreter.train(replace(START, keep=first.keep), data, 0)
    assert_same(second.keep["v"], dict(first.keep["v"]))
    assert second.keep["alpha"].value == first.keep["alpha"].value != np.float32(0.25)


def test_a_round_can_be_done_again_to_the_bit() -> None:
    data, interpreter = examples(), toy()
    once, again = interpreter.train(START, data, 6), interpreter.train(START, data, 6)
    other = interpreter.train(replace(START, seed=8), data, 6)
    assert_same(again.upload["delta"], dict(once.upload["delta"]))
    assert not np.array_equal(other.upload["delta"]["bias"], once.upload["delta"]["bias"])


def test_metrics_are_means_over_the_steps() -> None:
    losses: list[float] = []

    def step(v: Values) -> Values:
        out = FUNCTIONS[Entry.STEP](v)
        losses.append(float(out["metric:loss"]))
        return out

    result = toy({Entry.STEP: step}).train(START, examples(), 4)
    assert len(losses) == 4
    assert result.metrics == {"loss": pytest.approx(sum(losses) / 4, rel=1e-12), "share": 1.0}
    assert toy().train(START, examples(), 0).metrics == {}


def test_on_step_is_told_of_each_step_and_may_stop() -> None:
    seen: list[int] = []

    def until_two(done: int) -> None:
        seen.append(done)
        if done == 2:
            raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        toy().train(START, examples(), 5, until_two)
    assert seen == [1, 2]


def test_a_slow_devices_part_is_a_round_of_as_many_steps() -> None:
    """But that the graphs know how many were planned; the minibatches are the same."""
    data = examples()
    by_hand = ByHand.opened(W, MODEL, data.count, {"lr": 0.2}, planned=9)
    by_hand.batches(data, 4, START.seed)
    by_hand.state |= FUNCTIONS[Entry.FINISH](by_hand.state)
    asked: list[None] = []
    told: list[int] = []

    def enough() -> bool:
        asked.append(None)
        return len(asked) == 4

    result = toy().train(START, data, 9, told.append, enough)
    assert (result.steps, len(asked), told) == (4, 4, [1, 2, 3, 4])
    assert result.metrics["share"] == pytest.approx(4 / 9)
    for name, tree in {**result.upload, **result.keep}.items():
        assert_same(tree, by_hand.slot(name))
    whole = toy().train(START, data, 4)
    assert_same(whole.upload["delta"], dict(result.upload["delta"]))  # nothing in it depends on what was planned
    assert whole.keep["count"].value != result.keep["count"].value


def test_at_least_one_step_is_taken_however_slow() -> None:
    result = toy().train(START, examples(), 5, enough=lambda: True)
    assert result.steps == 1
    assert result.metrics.keys() == {"loss", "share"}
    assert toy().train(START, examples(), 0, enough=lambda: True).steps == 0


def _telling(entry: Entry, value: float) -> tuple[dict[Entry, Graph], Functions]:
    """The toy with a number told by this graph, and none by ``step``."""
    graphs = _with(entry, outputs=metric_ports(entry))
    graphs[Entry.STEP] = Graph(graphs[Entry.STEP].inputs, slot_ports("x", "v", "alpha", "count"))
    told = np.asarray(value, np.float32)
    return graphs, {entry: lambda v: FUNCTIONS[entry](v) | {f"metric:{entry}": told}}


def test_what_is_told_is_the_steps_or_the_inner_ones_or_that_of_prepare() -> None:
    inner, prepare = _telling(Entry.INNER, 3.0), _telling(Entry.PREPARE, 5.0)
    both = ({**inner[0], Entry.PREPARE: prepare[0][Entry.PREPARE]}, {**inner[1], **prepare[1]})
    for (graphs, functions), told in ((inner, {"inner": 3.0}), (prepare, {"prepare": 5.0}), (both, {"inner": 3.0})):
        plan = plan_of(graphs=graphs)
        runner = ToyRunner(plan, {**FUNCTIONS, **functions})
        assert Interpreter(plan, MODEL, runner).train(START, examples(), 3).metrics == {**told, "share": 1.0}
    plan = plan_of(graphs={**both[0], Entry.STEP: GRAPHS[Entry.STEP]})
    metrics = Interpreter(plan, MODEL, ToyRunner(plan, {**FUNCTIONS, **both[1]})).train(START, examples(), 3).metrics
    assert metrics == toy().train(START, examples(), 3).metrics


def test_the_inner_loss_is_that_of_the_last_inner_step() -> None:
    calls: list[float] = []

    def inner(v: Values) -> Values:
        calls.append(len(calls))
        return FUNCTIONS[Entry.INNER](v) | {"metric:inner": np.asarray(calls[-1], np.float32)}

    graphs, _ = _telling(Entry.INNER, 0.0)
    plan = plan_of(graphs=graphs)
    metrics = Interpreter(plan, MODEL, ToyRunner(plan, {**FUNCTIONS, Entry.INNER: inner})).train(START, examples(), 3)
    assert len(calls) == 3 * 2
    assert metrics.metrics["inner"] == (1 + 3 + 5) / 3


def test_a_number_to_tell_that_is_not_finite_ends_the_round() -> None:
    with pytest.raises(GraphFailed, match="slot 'share' is not finite") as caught:
        toy(_bad("share/", np.nan)).train(START, examples(), 1)
    assert caught.value.where == "round 3"


def test_a_device_without_enough_examples_for_a_minibatch_has_epochs_of_one_step() -> None:
    for rows, epoch in ((1, 1), (4, 1), (5, 2), (9, 3)):
        memory = toy().open(START, examples(train=rows), 7)
        known = {name: float(memory["slot", name, ""]) for name in ("examples", "planned", "epoch", "steps")}
        assert known == {"examples": rows, "planned": 7, "epoch": epoch, "steps": 0}


def _bad(slot: str, value: float) -> Functions:
    def finish(v: Values) -> Values:
        out = FUNCTIONS[Entry.FINISH](v)
        out[slot] = np.full_like(out[slot], value)
        return out

    return {Entry.FINISH: finish}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_never_leave_the_device(value: float) -> None:
    with pytest.raises(GraphFailed) as caught:
        toy(_bad("delta/matrix", value)).train(START, examples(), 1)
    assert caught.value.where == "round 3"
    assert "'matrix' of slot 'delta'" in caught.value.what
    assert "lower lr" in caught.value.remedy


def test_kept_slots_that_are_not_finite_are_refused_too() -> None:
    def step(v: Values) -> Values:
        return FUNCTIONS[Entry.STEP](v) | {"count/": np.asarray(np.nan, np.float32)}

    with pytest.raises(GraphFailed, match="of slot 'count' is not finite") as caught:
        toy({Entry.STEP: step}).train(START, examples(), 1)
    assert caught.value.where == "round 3"


def test_a_loss_that_is_not_finite_ends_the_round_at_once() -> None:
    seen: list[int] = []

    def step(v: Values) -> Values:
        return FUNCTIONS[Entry.STEP](v) | {"metric:loss": np.asarray(np.nan, np.float32)}

    with pytest.raises(GraphFailed, match="loss is nan"):
        toy({Entry.STEP: step}).train(START, examples(), 9, seen.append)
    assert seen == []


def test_a_result_of_another_shape_is_refused() -> None:
    def finish(v: Values) -> Values:
        return FUNCTIONS[Entry.FINISH](v) | {"delta/bias": np.zeros(5, np.float32)}

    with pytest.raises(GraphFailed, match="'bias' of slot 'delta'") as caught:
        toy({Entry.FINISH: finish}).train(START, examples(), 1)
    assert caught.value.where == "round 3"


def test_an_unknown_hyperparameter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PlanError, match="'lam_bda'") as caught:
        toy().train(replace(START, hyper={"lam_bda": 1.0}), examples(), 1)
    assert caught.value.remedy == "Did you mean lam?"


@pytest.mark.parametrize(
    ("down", "what"),
    [
        ({}, "slot 'w' is missing"),
        ({"w": W, "y": W}, "slot 'y' is not in the plan"),
        ({"w": Tree({"bias": W["bias"]})}, "tensor 'matrix' of slot 'w'"),
        ({"w": W.map(lambda tensor: tensor.astype(np.float64))}, "tensor 'bias' of slot 'w'"),
    ],
)
def test_other_tensors_than_the_plans_are_refused(down: dict[str, Tree], what: str) -> None:
    with pytest.raises(PlanError, match=what) as caught:
        toy().train(replace(START, down=down), examples(), 1)
    assert caught.value.where == "download"


def test_a_slot_that_nothing_has_set_is_named() -> None:
    plan = plan_of(graphs={entry: graph for entry, graph in GRAPHS.items() if entry is not Entry.BEGIN})
    with pytest.raises(GraphFailed, match="of slot 'x', which nothing has set") as caught:
        Interpreter(plan, MODEL, ToyRunner(plan)).train(START, examples(), 1)
    assert caught.value.where == "graph step"


def _with(entry: Entry, inputs: Iterable[Port] = (), outputs: Iterable[Port] = ()) -> dict[Entry, Graph]:
    graph = GRAPHS[entry]
    return {**GRAPHS, entry: Graph((*graph.inputs, *inputs), (*graph.outputs, *outputs))}


@pytest.mark.parametrize(
    ("graphs", "what"),
    [
        ({entry: graph for entry, graph in GRAPHS.items() if entry is not Entry.FINISH}, "no graph finish"),
        ({entry: graph for entry, graph in GRAPHS.items() if entry is not Entry.INNER}, "no graph inner"),
        (_with(Entry.STEP, outputs=slot_ports("w")), "may not set down slot 'w'"),
        (_with(Entry.STEP, outputs=slot_ports("steps")), "may not set given slot 'steps'"),
        (_with(Entry.STEP, outputs=hyper_ports("lr")), "may not set hyper 'lr'"),
        (_with(Entry.STEP, outputs=BATCH_PORTS[:1]), "may not set batch 'x'"),
        (_with(Entry.STEP, inputs=hyper_ports("mu")), "'mu' is no runtime hyperparameter"),
        (_with(Entry.STEP, inputs=[Port("q", Kind.SLOT, "q", TensorSpec(()))]), "tensor '' of slot 'q'"),
        (_with(Entry.STEP, inputs=[Port("q", Kind.SLOT, "alpha", TensorSpec((2,)))]), "tensor '' of slot 'alpha'"),
        (_with(Entry.STEP, outputs=[Port("m", Kind.METRIC, "m", TensorSpec((2,)))]), "metric 'm' has dimensions"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(graphs: dict[Entry, Graph], what: str) -> None:
    plan = plan_of(graphs=graphs)
    with pytest.raises(PlanError, match=what):
        Interpreter(plan, MODEL, ToyRunner(plan))
    assert Interpreter(plan_of(), MODEL, ToyRunner(plan)).has(Entry.STEP)


def test_a_given_slot_that_this_agent_does_not_know_is_refused() -> None:
    plan = plan_of()
    plan = plan_of(slots={**plan.slots, **resolve({"weather": given()}, plan.model, ())})
    assert plan.slots["weather"].role is Role.GIVEN
    with pytest.raises(PlanError, match="knows no 'weather'"):
        Interpreter(plan, MODEL, ToyRunner(plan))


def test_further_metrics_are_told_as_well() -> None:
    def step(v: Values) -> Values:
        return FUNCTIONS[Entry.STEP](v) | {"metric:norm": np.asarray(3.0, np.float32)}

    plan = plan_of(graphs=_with(Entry.STEP, outputs=metric_ports("norm")))
    runner = ToyRunner(plan, {**FUNCTIONS, Entry.STEP: step})
    metrics = Interpreter(plan, MODEL, runner).train(START, examples(), 2).metrics
    assert set(metrics) == {"loss", "norm", "share"}
    assert metrics["norm"] == 3.0
