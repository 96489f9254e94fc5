"""A task whose upload is encoded: what is sent, what is owed, and which KEEP slots follow."""

from __future__ import annotations

import hashlib
import struct

import msgspec
import numpy as np
import pytest
from _tasks import DEVICE
from _toy import HYPER
from test_work import PLAN, give, ignore, materials, workshop

from device_agent import sending
from device_agent.interpreter import RoundResult
from device_agent.work import Product
from edgepfl import codec, wire
from edgepfl.coding import Coding
from edgepfl.errors import CodecError, ConfigError, PlanError, WireError
from edgepfl.plan import Amend, Role
from edgepfl.seeds import derive
from edgepfl.tree import Tree, Trees
from edgepfl.wire import Task

OWING = "topk:0.3+int8"


def done(task: Task, keep: bytes | None = None) -> Product:
    return workshop().perform(task, materials(keep), ignore)


def kept(product: Product, words: str) -> sending.Kept:
    return sending.taken(product.keep, Coding(words, PLAN), PLAN)


def up() -> codec.Expected:
    return {name: slot.tensors for name, slot in PLAN.by_role(Role.UP).items()}


def test_what_a_round_leaves_out_is_added_to_the_next_one() -> None:
    """As if the residual had been in the second round's upload from the beginning; nothing else differs."""
    coding = Coding(OWING, PLAN)
    first = done(give(codec=OWING))
    assert first.upload is not None
    owed = kept(first, OWING).residual
    assert any(array.any() for tree in owed.values() for array in tree.values())
    second = done(give(codec=OWING, round=2, seed=5), first.keep)
    plain_keep = codec.encode(kept(first, OWING).slots or {})
    raw = done(give(round=2, seed=5), plain_keep)
    assert raw.upload is not None
    expected = coding.encode(codec.decode(raw.upload, up()), derive(5, DEVICE), owed)
    assert second.upload == expected.data
    np.testing.assert_equal(
        {n: dict(tree) for n, tree in kept(second, OWING).residual.items()},
        {n: dict(tree) for n, tree in expected.residual.items()},
    )
    assert second.upload != coding.encode(codec.decode(raw.upload, up()), derive(5, DEVICE)).data


@pytest.mark.parametrize("words", [OWING, "int4", "float16+zlib", "threshold:1e-2"])
def test_the_same_task_from_the_same_state_gives_the_same_bytes(words: str) -> None:
    """So a round that is done again, after an abandonment or a power cut, sends and owes the same."""
    before = done(give(codec=words)).keep
    one, two = (done(give(codec=words, round=2, seed=9, attempt=attempt), before) for attempt in (0, 1))
    assert (one.keep, one.upload) == (two.keep, two.upload)
    assert one.kept == hashlib.sha256(one.keep).hexdigest()  # the digest speaks for what is owed, too
    assert done(give(codec=words, round=2, seed=8), before).upload != one.upload


def test_a_task_without_steps_changes_nothing_that_is_owed() -> None:
    trained = done(give(codec=OWING))
    final = done(give(codec=OWING, steps=0, evaluate=True, final=True), trained.keep)
    assert (final.keep, final.upload) == (trained.keep, None)
    fresh = done(give(codec=OWING, steps=0))
    owed = kept(fresh, OWING).residual
    assert owed
    assert not any(array.any() for tree in owed.values() for array in tree.values())
    assert done(give(codec=OWING), fresh.keep).upload == trained.upload


def test_what_is_owed_is_not_sent() -> None:
    product = done(give(codec=OWING))
    assert product.upload is not None
    for tree in kept(product, OWING).residual.values():
        for array in tree.values():
            assert not any(struct.pack("<f", number) in product.upload for number in array[array != 0].ravel())


def test_kept_bytes_of_another_codec_are_refused() -> None:
    plain, owing = done(give()), done(give(codec=OWING))
    for words, data in ((OWING, plain.keep), ("", owing.keep), ("int8", owing.keep)):
        with pytest.raises(CodecError, match="kept slots"):
            done(give(codec=words), data)


def test_a_codec_of_a_newer_coordinator_is_refused_before_the_training() -> None:
    told: list[int] = []
    with pytest.raises(ConfigError, match="no such part"):
        workshop().perform(give(codec="int3"), materials(), told.append)
    assert told == [0]


def of(**slots: list[float]) -> Trees:
    return {name: Tree({"a": np.array(values, np.float32)}) for name, values in slots.items()}


def test_keep_slots_follow_what_arrived() -> None:
    keep, was, came = of(g=[1.0, 2.0], v=[5.0, 5.0]), of(delta=[1.0, -1.0]), of(delta=[1.5, -1.0])
    found = sending.amended(keep, [Amend("g", "delta", -0.5)], (was, came), 4)
    assert {name: tree["a"].tolist() for name, tree in found.items()} == {"g": [0.75, 2.0], "v": [5.0, 5.0]}
    found = sending.amended(keep, [Amend("g", "delta", -8, per_step=True)], (was, came), 4)
    assert found["g"]["a"].tolist() == [0.0, 2.0]
    twice = [Amend("g", "delta"), Amend("g", "delta", 2.0)]
    assert sending.amended(keep, twice, (was, came), 4)["g"]["a"].tolist() == [2.5, 2.0]


def test_a_copy_of_what_was_sent_becomes_one_of_what_arrived_to_the_bit() -> None:
    rng = np.random.default_rng(1)
    sent = (rng.standard_normal(1000) * 10.0 ** rng.integers(-6, 3, 1000)).astype(np.float32)
    came = (sent * (1 + rng.standard_normal(1000))).astype(np.float32)
    trees = [{"omega": Tree({"a": array})} for array in (sent, came)]
    found = sending.amended(trees[0], [Amend("omega", "omega")], (trees[0], trees[1]), 1)
    assert found["omega"]["a"].tobytes() == came.tobytes()


@pytest.mark.parametrize("amend", [Amend("nothing", "delta"), Amend("g", "nothing"), Amend("g", "wide")])
def test_an_amend_that_does_not_fit_is_refused(amend: Amend) -> None:
    trees = of(delta=[1.0], wide=[1.0, 2.0])
    with pytest.raises(PlanError, match=f"{amend.keep}.*cannot follow.*{amend.up}"):
        sending.amended(of(g=[1.0]), [amend], (trees, trees), 1)


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_task_with_a_factor_that_is_none_is_no_message(factor: float) -> None:
    with pytest.raises(WireError, match="factor is not finite"):
        wire.encode(msgspec.structs.replace(give(), amends=(Amend("g", "delta", factor),)))


def test_a_result_is_sent_with_what_is_owed_and_kept_beside_the_slots() -> None:
    coding = Coding(OWING, PLAN)
    upload = {
        name: Tree({key: np.ones(spec.shape, spec.dtype) for key, spec in specs.items()})
        for name, specs in up().items()
    }
    made = sending.sent(RoundResult(upload, {}, 3, HYPER), coding, (), coding.none_left(), 1)
    assert made.keep.keys() == coding.residuals.keys()
    found = coding.decode(made.upload)
    for name, tree in made.decoded.items():
        for key, array in tree.items():
            np.testing.assert_array_equal(found[name][key], array)
