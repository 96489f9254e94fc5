from __future__ import annotations

import msgspec
import pytest

from edgepfl.errors import PlanError
from edgepfl.plan import (
    INPUT_LIMIT,
    MODEL,
    BatchPlan,
    Entry,
    ExampleSpec,
    Plan,
    Reduce,
    Role,
    Shape,
    Slot,
    TensorSpec,
    down,
    given,
    keep,
    noise,
    resolve,
    tell,
    tensors_of,
    up,
    work,
)

SPECS = {"body.weight": TensorSpec((3, 2)), "head.bias": TensorSpec((2,)), "head.weight": TensorSpec((2, 2))}
HEAD = ("head.bias", "head.weight")


def test_each_shape_takes_its_part_of_the_model() -> None:
    assert tensors_of(Shape.PARAMS, SPECS, HEAD) == SPECS
    assert tensors_of(Shape.SHARED, SPECS, HEAD).keys() == {"body.weight"}
    assert tensors_of(Shape.PERSONAL, SPECS, HEAD).keys() == set(HEAD)
    assert tensors_of(Shape.SHARED, SPECS, HEAD) | tensors_of(Shape.PERSONAL, SPECS, HEAD) == SPECS
    assert tensors_of(Shape.SCALAR, SPECS, HEAD) == {"": TensorSpec(())}
    assert tensors_of((4, 5), SPECS, HEAD) == {"": TensorSpec((4, 5))}


def test_a_slot_may_name_its_dimensions() -> None:
    slots = {"table": work(("classes", 3, "width")), "eps": noise("batch"), "norm": tell(), "mu": down((2,), first=0.5)}
    dims = {"classes": 7, "width": 5, "batch": 4}
    plan = resolve(slots, SPECS, (), dims=dims)
    assert {name: slot.tensors[""].shape for name, slot in plan.items()} == {
        "table": (7, 3, 5),
        "eps": (4,),
        "norm": (),
        "mu": (2,),
    }
    assert (plan["norm"].role, plan["mu"].first) == (Role.TELL, 0.5)
    with pytest.raises(PlanError, match="the model has no dimension 'width'") as caught:
        resolve(slots, SPECS, (), dims={"classes": 7, "batch": 4})
    assert caught.value.remedy == "It has batch, classes"
    with pytest.raises(PlanError, match="no dimension 'classes'") as caught:
        resolve(slots, SPECS, ())
    assert caught.value.remedy == "It has none"


def test_what_predicts_is_a_model_unless_the_plan_says_otherwise() -> None:
    batch = BatchPlan(4, (ExampleSpec((2,)),), ExampleSpec(()))
    plain = Plan("toy", {}, {}, {}, {}, {}, batch, SPECS, ("own",))
    mixture = msgspec.structs.replace(plain, served={"0.head.bias": TensorSpec((2,)), "pi": TensorSpec((1,))})
    assert plain.predictor == SPECS
    assert mixture.predictor.keys() == {"0.head.bias", "pi"}
    old = msgspec.json.decode(msgspec.json.encode(plain))
    for new in ("served", "dims", "statistics"):
        del old[new]  # as plans were before there were these
    assert msgspec.convert(old, Plan) == plain


def test_a_whole_table_resolves() -> None:
    slots = {
        "w": down(Shape.SHARED),
        "zeta": down(addressed=True),
        "x": work(),
        "steps": given(),
        "z": noise(8, 3),
        "v": keep(first="zeta"),
        "head": keep(Shape.PERSONAL, first=MODEL),
        "alpha": keep(Shape.SCALAR, first="alpha_first"),
        "count": keep(Shape.SCALAR, first=0.0),
        "delta": up(Reduce.MEAN, Shape.SHARED),
    }
    plan = resolve(slots, SPECS, HEAD, hyper={"alpha_first"})
    assert list(plan) == list(slots)
    assert {name: slot.role for name, slot in plan.items()} == {name: slot.role for name, slot in slots.items()}
    assert plan["zeta"].addressed
    assert not plan["w"].addressed
    assert plan["z"].tensors[""].shape == (8, 3)
    assert plan["delta"].reduce is Reduce.MEAN
    assert plan["head"].tensors.keys() == set(HEAD)


BAD_SLOTS: dict[str, tuple[dict[str, Slot], str]] = {
    "up without a reduction": ({"delta": Slot(Role.UP)}, "needs a reduction"),
    "keep without a first value": ({"v": Slot(Role.KEEP)}, "needs a first value"),
    "first names nothing": ({"v": keep(first="w")}, "'w', which is no DOWN slot"),
    "first names a WORK slot": ({"x": work(), "v": keep(first="x")}, "'x', which is no DOWN slot"),
    "first names another KEEP slot": ({"u": keep(first=0.0), "v": keep(first="u")}, "'u', which is no DOWN slot"),
    "first has fewer tensors": ({"w": down(Shape.SHARED), "v": keep(first="w")}, "'w', which has other tensors"),
    "first has another shape": ({"w": down((3,)), "v": keep((4,), first="w")}, "'w', which has other tensors"),
    "the model is no scalar": ({"v": keep(Shape.SCALAR, first=MODEL)}, "'model', which has other tensors"),
}


@pytest.mark.parametrize(("slots", "problem"), BAD_SLOTS.values(), ids=BAD_SLOTS.keys())
def test_a_table_that_contradicts_itself_is_refused(slots: dict[str, Slot], problem: str) -> None:
    with pytest.raises(PlanError) as caught:
        resolve(slots, SPECS, HEAD)
    assert problem in caught.value.what
    assert caught.value.where in {"slot v", "slot delta"}


def test_a_personal_parameter_must_be_the_models() -> None:
    with pytest.raises(PlanError, match="no parameter 'tail'") as caught:
        resolve({"h": keep(Shape.PERSONAL, first=MODEL)}, SPECS, ("head.bias", "tail"))
    assert caught.value.where == "personal"


@pytest.mark.parametrize("shape", [(0,), (-1,), (1 << 25,), (1 << 24, 1 << 24), (1,) * 9, (2, 0, 2)])
def test_a_shape_that_no_model_has_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        TensorSpec(shape)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"shape": list(shape)}, TensorSpec)


def test_only_what_crosses_a_graphs_border_is_a_dtype() -> None:
    assert (TensorSpec((2, 3)).nbytes, TensorSpec((2, 3), "int64").nbytes, TensorSpec(()).size) == (24, 48, 1)
    with pytest.raises(ValueError, match="'float64' is not one of float32, int64"):
        TensorSpec((1,), "float64")


@pytest.mark.parametrize("size", [0, -4, (1 << 16) + 1])
def test_a_minibatch_has_rows_but_not_too_many(size: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        BatchPlan(size, (ExampleSpec((1,)),), ExampleSpec(()))
    assert BatchPlan(1 << 16, (ExampleSpec((1,)),), ExampleSpec(())).size == 1 << 16


@pytest.mark.parametrize("count", [0, INPUT_LIMIT + 1])
def test_a_model_has_inputs_but_not_too_many(count: int) -> None:
    spec = ExampleSpec((2,))
    with pytest.raises(ValueError, match=f"{count} inputs are outside 1 .. 16"):
        BatchPlan(4, (spec,) * count, spec)
    assert len(BatchPlan(4, (spec,) * INPUT_LIMIT, spec).x) == INPUT_LIMIT


def test_a_plan_survives_json_and_finds_slots_by_role() -> None:
    slots = resolve({"w": down(), "v": keep(first="w"), "delta": up(Reduce.SUM)}, SPECS, ())
    plan = Plan(
        "ditto", {"inner_steps": 0}, {"lr": 0.5}, {"weighting": "uniform"}, slots, {},
        BatchPlan(4, (ExampleSpec((2,)), ExampleSpec((5,), "int64", high=9)), ExampleSpec((), "int64", high=3)),
        SPECS, ("own", "global"), inner_steps=2, title="mlp",
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert [plan.by_role(role).keys() for role in (Role.DOWN, Role.KEEP, Role.NOISE)] == [{"w"}, {"v"}, set()]
    assert {entry.value for entry in Entry} >= {"begin", "step", "finish"}
