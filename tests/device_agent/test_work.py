"""The workshop: one task, from bytes to bytes, with the toy's graphs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from _tasks import DEVICE, blob, task
from _toy import HYPER, ToyRunner, examples, plan_of, trees

from device_agent.interpreter import Stopped
from device_agent.work import Job, Materials, Workshop
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.errors import BundleError, CodecError, PlanError
from edgepfl.plan import Role
from edgepfl.wire import Task

PLAN = plan_of()
BUNDLE = Bundle(PLAN, trees(0), {"onnx": dict.fromkeys(PLAN.graphs, b"graph")}, {})
DOWNLOAD = codec.encode({"w": trees(1)})


def give(**fields: Any) -> Task:  # noqa: ANN401  of Task
    """A task for the toy."""
    message = task()
    values = {name: getattr(message, name) for name in message.__struct_fields__}
    return Task(**{**values, "hyper": HYPER, **fields})


def materials(keep: bytes | None = None, read: Callable[[], bytes] = lambda: pack(BUNDLE)) -> Materials:
    return Materials(DEVICE, examples(), read, lambda: DOWNLOAD, keep)


def workshop(most: int = 4) -> Workshop:
    return Workshop(lambda bundle: ToyRunner(bundle.plan), most=most)


def ignore(_: int) -> None:
    pass


def stop_at(calls: int) -> Callable[[int], None]:
    """Raises Stopped at this call."""
    count = itertools.count(1)

    def on_step(_: int) -> None:
        if next(count) == calls:
            raise Stopped("enough")

    return on_step


def test_the_same_task_from_the_same_state_gives_the_same_bytes() -> None:
    one, two = (workshop().perform(give(), materials(), ignore) for _ in range(2))
    assert (one.keep, one.upload, one.metrics) == (two.keep, two.upload, two.metrics)
    assert one.kept == hashlib.sha256(one.keep).hexdigest()
    next_one = workshop().perform(give(), materials(one.keep), ignore)
    assert next_one.keep != one.keep
    assert workshop().perform(give(seed=2), materials(), ignore).upload != one.upload


def test_each_device_draws_its_own_minibatches() -> None:
    other = replace(materials(), device="pi-08")
    assert workshop().perform(give(), other, ignore).upload != workshop().perform(give(), materials(), ignore).upload


def test_keep_slots_are_in_keep_and_up_slots_in_upload() -> None:
    product = workshop().perform(give(), materials(), ignore)
    for data, role in ((product.keep, Role.KEEP), (product.upload, Role.UP)):
        expected = {name: slot.tensors for name, slot in PLAN.by_role(role).items()}
        assert data is not None
        assert codec.decode(data, expected, where="product").keys() == expected.keys()


def test_a_task_without_steps_changes_nothing_to_the_bit() -> None:
    trained = workshop().perform(give(), materials(), ignore)
    final = workshop().perform(give(steps=0, evaluate=True, final=True), materials(trained.keep), ignore)
    assert (final.keep, final.upload, final.steps) == (trained.keep, None, 0)
    assert final.serving is not None
    assert final.metrics.keys() == {f"{name}.{model}" for name in ("accuracy", "loss") for model in PLAN.models}
    assert trained.serving is None


def test_evaluation_does_not_touch_the_training_after_it() -> None:
    plain = workshop().perform(give(), materials(), ignore)
    evaluated = workshop().perform(give(evaluate=True, tune_steps=3), materials(), ignore)
    assert (evaluated.keep, evaluated.upload) == (plain.keep, plain.upload)
    assert evaluated.metrics["loss"] == plain.metrics["loss"]


def test_steps_are_counted_from_one_and_everything_can_be_stopped() -> None:
    told: list[int] = []
    workshop().perform(give(steps=4), materials(), told.append)
    assert told == [0, 1, 2, 3, 4]
    endless = 50_000
    for calls, work in ((1, {"steps": 3}), (9, {"steps": endless}), (9, {"tune_steps": endless, "evaluate": True})):
        with pytest.raises(Stopped):
            workshop().perform(give(**work), materials(), stop_at(calls))


@pytest.mark.parametrize(("patience", "taken"), [(0, 5), (25, 3), (29.9, 3), (30, 3), (30.1, 4), (1e6, 5)])
def test_patience_ends_a_training_after_the_step_it_is_at(patience: float, taken: int) -> None:
    """A step takes ten seconds here, and the evaluation before them a thousand, which are no part of it."""
    now = [0.0]
    timed = Workshop(lambda bundle: ToyRunner(bundle.plan), clock=lambda: now[0])

    def pass_time(done: int) -> None:
        now[0] += 10 if done else 1000

    slow = timed.perform(give(steps=5, evaluate=True, patience=patience), materials(), pass_time)
    assert slow.steps == taken
    assert slow.metrics["share"] == pytest.approx(taken / 5)
    assert slow.seconds["train"] == 10 * taken
    whole = workshop().perform(give(steps=taken, evaluate=True), materials(), ignore)
    assert whole.upload == slow.upload  # as if no more had been asked for
    final = timed.perform(give(steps=0, evaluate=True, final=True, patience=1e-9), materials(slow.keep), pass_time)
    assert (final.keep, final.upload, final.steps) == (slow.keep, None, 0)


def test_a_job_that_is_stopped_says_so_at_its_next_step() -> None:
    job = Job(give())
    job.on_step(3)
    assert job.steps == 3
    job.stop.set()
    with pytest.raises(Stopped, match="round 1"):
        job.on_step(4)


def test_a_bundle_is_read_once_and_the_oldest_gives_way() -> None:
    reads: list[str] = []

    def reading(name: str) -> Callable[[], bytes]:
        def read() -> bytes:
            reads.append(name)
            return pack(BUNDLE)

        return read

    shop = workshop(most=2)
    for name in ("a", "a", "b", "a", "c", "b", "a"):
        shop.perform(give(bundle=blob(name)), materials(read=reading(name)), ignore)
    assert reads == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"not a zip", "not a bundle file"),
        (pack(BUNDLE)[:-40], "not a bundle file"),
        (pack(Bundle(PLAN, trees(0), {}, {})), "no onnx graphs"),
    ],
)
def test_a_bad_bundle_is_refused_with_its_reason_each_time(data: bytes, words: str) -> None:
    shop = workshop()
    for _ in range(2):
        with pytest.raises(BundleError, match=words):
            shop.perform(give(), materials(read=lambda: data), ignore)
    assert shop.perform(give(bundle=blob("good")), materials(), ignore).steps == 3


def test_a_download_or_a_kept_state_of_another_shape_is_refused() -> None:
    other = replace(materials(), download=lambda: codec.encode({"z": trees(1)}))
    with pytest.raises(CodecError, match="download"):
        workshop().perform(give(), other, ignore)
    with pytest.raises(CodecError, match="kept slots"):
        workshop().perform(give(), materials(keep=DOWNLOAD), ignore)
    with pytest.raises(PlanError, match="momentum"):
        workshop().perform(give(hyper={"momentum": 1.0}), materials(), ignore)
