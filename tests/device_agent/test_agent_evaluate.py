from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from _inputs import only
from _toy import (
    BATCH_PORTS,
    CLASSES,
    FEATURES,
    FUNCTIONS,
    GRAPHS,
    ByHand,
    ToyRunner,
    Values,
    accuracy,
    examples,
    plan_of,
    trees,
)

from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from edgepfl.errors import GraphFailed, PlanError
from edgepfl.plan import Entry, Graph, Kind, Port, TensorSpec

W, MODEL = trees(1), trees(2)
START = Start(down={"w": W}, keep=None, hyper={}, seed=5, round=2)


def toy() -> Interpreter:
    plan = plan_of()
    return Interpreter(plan, MODEL, ToyRunner(plan))


@pytest.mark.parametrize("test_rows", [1, 4, 7, 13])
@pytest.mark.parametrize("tune_steps", [0, 3])
def test_every_test_row_counts_once_for_every_model(test_rows: int, tune_steps: int) -> None:
    data = examples(test=test_rows)
    by_hand = ByHand.opened(W, MODEL, data.count, {})
    by_hand.tuned(data, tune_steps, START.seed)
    params = FUNCTIONS[Entry.MODELS](by_hand.state)
    found = evaluate(toy(), START, data, tune_steps)
    for name in ("personal", "global"):
        expected = accuracy(params[f"{name}/matrix"], params[f"{name}/bias"], data)
        assert found.metrics[f"accuracy.{name}"] == pytest.approx(expected, abs=1e-9)
        logits = only(data.test_x) @ params[f"{name}/matrix"].T + params[f"{name}/bias"]
        loss = ((logits - np.eye(3)[data.test_y]) ** 2).sum(1).mean()
        assert found.metrics[f"loss.{name}"] == pytest.approx(loss, rel=1e-5)
    assert len(found.metrics) == 4
    np.testing.assert_array_equal(found.personal["matrix"], params["personal/matrix"])


def test_tuning_changes_the_personal_model_and_nothing_that_stays() -> None:
    data, interpreter = examples(), toy()
    before = interpreter.train(START, data, 2)
    plain, tuned = evaluate(interpreter, START, data, 0), evaluate(interpreter, START, data, 4)
    after = interpreter.train(START, data, 2)
    assert not np.array_equal(plain.personal["matrix"], tuned.personal["matrix"])
    assert plain.metrics["loss.global"] == tuned.metrics["loss.global"]
    np.testing.assert_array_equal(before.keep["v"]["matrix"], after.keep["v"]["matrix"])


def test_tuning_draws_other_minibatches_than_training() -> None:
    drawn: dict[Entry, list[bytes]] = {Entry.STEP: [], Entry.TUNE: []}

    def recording(entry: Entry) -> Callable[[Values], Values]:
        def run(v: Values) -> Values:
            drawn[entry].append(v["batch:x0"].tobytes())
            return FUNCTIONS[entry](v)

        return run

    plan = plan_of()
    runner = ToyRunner(plan, {**FUNCTIONS, **{entry: recording(entry) for entry in drawn}})
    interpreter, data = Interpreter(plan, MODEL, runner), examples(train=40)
    interpreter.train(START, data, 5)
    evaluate(interpreter, START, data, 5)
    assert len(drawn[Entry.STEP]) == len(drawn[Entry.TUNE]) == 5
    assert not set(drawn[Entry.STEP]) & set(drawn[Entry.TUNE])


def test_what_predicts_may_be_other_tensors_than_a_models() -> None:
    """As a mixture of models, and their shares: here bias and matrix in one."""
    joint = TensorSpec((CLASSES, FEATURES + 1))

    def models(v: Values) -> Values:
        out = FUNCTIONS[Entry.MODELS](v)
        return {
            f"{name}/joint": np.column_stack([out[f"{name}/matrix"], out[f"{name}/bias"]]) for name in plain.plan.models
        }

    def judged(v: Values) -> Values:
        return FUNCTIONS[Entry.EVALUATE](v | {"/matrix": v["/joint"][:, :-1], "/bias": v["/joint"][:, -1]})

    def port(name: str) -> Port:
        return Port(f"{name}/joint", Kind.MODEL, name, joint, "joint")

    plain, data = toy(), examples(test=7)
    graphs = {
        **GRAPHS,
        Entry.MODELS: Graph(GRAPHS[Entry.MODELS].inputs, tuple(port(name) for name in plain.plan.models)),
        Entry.EVALUATE: Graph((port(""), *BATCH_PORTS), GRAPHS[Entry.EVALUATE].outputs),
    }
    plan = msgspec.structs.replace(plan_of(graphs=graphs), served={"joint": joint})
    interpreter = Interpreter(plan, MODEL, ToyRunner(plan, {**FUNCTIONS, Entry.MODELS: models, Entry.EVALUATE: judged}))
    found, wanted = evaluate(interpreter, START, data, 3), evaluate(plain, START, data, 3)
    assert found.metrics == wanted.metrics
    assert set(found.personal) == {"joint"}
    np.testing.assert_array_equal(found.personal["joint"][:, :-1], wanted.personal["matrix"])
    other = msgspec.structs.replace(plan, served={"joint": joint, "shares": TensorSpec((2,))})
    with pytest.raises(GraphFailed, match="no 'shares' of 'personal'"):
        evaluate(Interpreter(other, MODEL, interpreter._runner), START, data, 0)


def test_a_device_without_test_data_still_has_a_model() -> None:
    found = evaluate(toy(), START, examples(test=0), 2)
    assert found.metrics == {}
    assert set(found.personal) == {"bias", "matrix"}


def test_a_plan_without_models_cannot_be_evaluated() -> None:
    plan = plan_of(graphs={entry: graph for entry, graph in GRAPHS.items() if entry is not Entry.MODELS})
    interpreter = Interpreter(plan, MODEL, ToyRunner(plan))
    with pytest.raises(PlanError, match="no models"):
        evaluate(interpreter, START, examples(), 0)
    assert interpreter.train(START, examples(), 1).steps == 1


def test_a_model_that_is_not_finite_is_refused() -> None:
    start = replace(START, hyper={"alpha_first": 3e38})
    with np.errstate(over="ignore"), pytest.raises(GraphFailed, match="of model 'personal' is not finite") as caught:
        evaluate(toy(), start, examples(), 0)
    assert caught.value.where == "round 2"


def test_an_evaluation_that_does_not_tell_what_examples_weigh_is_refused_before_anything_runs() -> None:
    graph = GRAPHS[Entry.EVALUATE]
    plan = plan_of(graphs={**GRAPHS, Entry.EVALUATE: Graph(graph.inputs, graph.outputs[:-1])})
    interpreter, called = Interpreter(plan, MODEL, ToyRunner(plan, {})), list[int]()
    with pytest.raises(PlanError, match="the sum of the weights") as caught:
        evaluate(interpreter, START, examples(), 0, lambda: called.append(1))
    assert (caught.value.where, caught.value.remedy) == ("graph evaluate", "Export the bundle again")
    assert called == []


def test_weights_that_sum_to_nothing_are_told_and_not_divided_by() -> None:
    def weightless(v: Values) -> Values:
        return FUNCTIONS[Entry.EVALUATE](v) | {"metric:weight": np.asarray(0, np.float32)}

    plan = plan_of()
    interpreter = Interpreter(plan, MODEL, ToyRunner(plan, {**FUNCTIONS, Entry.EVALUATE: weightless}))
    with pytest.raises(GraphFailed, match="0 for the sum of the weights of 5 examples") as caught:
        evaluate(interpreter, START, examples(test=5), 0)
    assert caught.value.where == "graph evaluate"
    assert "edgepfl doctor" in caught.value.remedy
