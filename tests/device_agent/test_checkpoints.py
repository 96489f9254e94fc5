"""Checkpoints of a training: what is used, what is ignored, and how often they are taken."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from _tasks import DEVICE, OTHER, blob, task
from _toy import HYPER, ToyRunner, examples, plan_of, slot_ports, trees

from device_agent.checkpoint import Checkpoint, CheckpointFile, Saver, fingerprint, key_of
from device_agent.data import Examples
from device_agent.interpreter import Halfway, Stopped
from device_agent.wiring import lasting
from device_agent.work import Job, Materials, Product, Workshop
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.plan import Entry, Graph, Kind
from edgepfl.wire import Member, Task

PLAN = plan_of()
BUNDLE = Bundle(PLAN, trees(0), {"onnx": dict.fromkeys(PLAN.graphs, b"graph")}, {})
DOWNLOAD = codec.encode({"w": trees(1)})
LASTING = lasting(PLAN)
STEPS = 9


def give(**fields: Any) -> Task:  # noqa: ANN401  of Task
    """A task for the toy, with an evaluation before its training."""
    return msgspec.structs.replace(task(), hyper=HYPER, steps=STEPS, evaluate=True, tune_steps=2, **fields)


class Board:
    """A device that trains with checkpoints; each task in a new process, as after a power cut.

    Args:
        folder: of its state.
        every: seconds between two checkpoints, of which one passes with each look at the clock.
    """

    def __init__(self, folder: Path, every: float = 1e9) -> None:
        self.file = CheckpointFile(folder / "checkpoint")
        self.every = every
        self.now = 0.0
        self.steps: list[int] = []

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def perform(
        self,
        given: Task,
        at: int = 0,
        data: Examples | None = None,
        keep: bytes | None = None,
        version: str = "",
    ) -> Product:
        """Do a task; pause it at a step."""
        job = Job(given)
        saver = Saver(self.file, self.every, resting=job.rest.is_set, over=job.stop.is_set, clock=self.clock)
        bundle = pack(BUNDLE)
        materials = Materials(DEVICE, data or examples(), lambda: bundle, lambda: DOWNLOAD, keep, saver)
        self.steps = []

        def on_step(done: int) -> None:
            if done:
                self.steps.append(done)
            if at and done == at - 1:
                job.rest.set()
            job.on_step(done)

        if at == 1:
            job.rest.set()
        return Workshop(lambda bundle: ToyRunner(bundle.plan), version=version).perform(given, materials, on_step)


def same(one: Product, two: Product) -> bool:
    """Everything but how long it took."""
    return replace(one, seconds={}) == replace(two, seconds={})


def halfway(steps: int = 3) -> Checkpoint:
    """Any checkpoint of the toy."""
    tensors = {place: np.full(spec.shape, index, spec.dtype) for index, (place, spec) in enumerate(LASTING.items())}
    return Checkpoint(Halfway(steps, tensors, {"loss": 0.1 + 0.2}), 2.5, 1.5, {"loss.global": 1 / 3}, b"model")


def test_what_lasts_is_what_a_later_step_or_the_end_reads_before_it_is_written() -> None:
    slots = {group for kind, group, _ in LASTING if kind == Kind.SLOT}
    assert slots == {"x", "v", "u", "alpha", "count"}  # and not "g", which each minibatch makes anew, nor "delta"
    assert len(LASTING) == 8
    assert all(kind == Kind.SLOT for kind, _, _ in LASTING)


def test_what_only_the_result_reads_lasts_too() -> None:
    step, finish = PLAN.graphs[Entry.STEP], PLAN.graphs[Entry.FINISH]
    told = slot_ports("share")
    graphs = {
        **PLAN.graphs,
        Entry.STEP: Graph(step.inputs, (*step.outputs, *told)),
        Entry.FINISH: Graph(finish.inputs, tuple(port for port in finish.outputs if port not in told)),
    }
    more = lasting(plan_of(graphs=graphs))
    assert {place[1] for place in more.keys() - LASTING.keys()} == {"share"}


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    file, given = CheckpointFile(tmp_path / "checkpoint"), halfway()
    assert file.load("key", LASTING) is None
    size = file.save("key", given)
    assert size == (tmp_path / "checkpoint").stat().st_size
    assert (tmp_path / "checkpoint").stat().st_mode & 0o077 == 0
    found = file.load("key", LASTING)
    assert found is not None
    assert replace(found, halfway=given.halfway) == given
    assert (found.halfway.steps, found.halfway.sums) == (3, {"loss": 0.1 + 0.2})
    for place, array in given.halfway.tensors.items():
        np.testing.assert_array_equal(found.halfway.tensors[place], array, strict=True)
    file.save("key", replace(halfway(4), serving=None))
    again = file.load("key", LASTING)
    assert again is not None
    assert (again.halfway.steps, again.serving) == (4, None)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    file.drop()
    file.drop()
    assert not file.exists


@pytest.mark.parametrize("damage", ["torn", "longer", "empty", "flipped", "not ours"])
def test_a_damaged_one_is_ignored_with_a_word_and_deleted(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    size = file.save("key", halfway())
    whole = path.read_bytes()
    ways: dict[str, Callable[[int], bytes]] = {
        "torn": lambda at: whole[:at],
        "longer": lambda _: whole + b"x",
        "empty": lambda _: b"",
        "flipped": lambda at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "not ours": lambda _: os.urandom(size),
    }
    for at in range(0, size, 37):
        path.write_bytes(ways[damage](at))
        caplog.clear()
        assert file.load("key", LASTING) is None
        assert "the round begins anew" in caplog.text
        assert not path.exists()


def test_one_of_another_task_or_of_other_tensors_is_ignored(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "checkpoint")
    fewer = dict(list(LASTING.items())[1:])
    for key, places in (("other", LASTING), ("key", fewer), ("key", {})):
        file.save("key", halfway())
        assert file.load(key, places) is None
        assert not file.exists


def other_examples(**changes: Any) -> Examples:  # noqa: ANN401  of Examples
    return replace(examples(), **changes)


def test_a_key_depends_on_all_that_the_result_depends_on_and_on_nothing_else() -> None:
    data, given = examples(), give()
    usual = key_of(given, DEVICE, "onnx", None, data)
    structs = msgspec.structs
    others = (Member(DEVICE, 4), Member(OTHER, 2))
    for same_task in (
        structs.replace(given, cohort=others),
        structs.replace(given, deadline=1.0, heartbeat=99.0),
        structs.replace(given, bundle=msgspec.structs.replace(given.bundle, chunks=b"", inline=b"bundle of run")),
    ):
        assert key_of(same_task, DEVICE, "onnx", None, data) == usual
    unrelated = {"cohort", "deadline", "heartbeat"}
    changes: dict[str, Any] = {
        "run": "other", "round": 2, "attempt": 1, "bundle": blob("x"), "download": blob("x"), "hyper": {}, "steps": 8,
        "seed": 2, "evaluate": False, "tune_steps": 3, "final": True, "patience": 1.0, "codec": "int8",
        "settings": {"a": 1.0}, "grid": 1,
    }  # fmt: skip
    assert changes.keys() <= set(Task.__struct_fields__) - unrelated
    keys = {
        key_of(structs.replace(given, **{name: value}), DEVICE, "onnx", None, data) for name, value in changes.items()
    }
    keys |= {key_of(given, OTHER, "onnx", None, data), key_of(given, DEVICE, "executorch", None, data)}
    keys |= {key_of(given, DEVICE, "onnx", b"kept", data), key_of(given, DEVICE, "onnx", b"", data)}
    assert len(keys) == len(changes) + 4
    assert usual not in keys


def test_examples_have_a_fingerprint_of_every_number() -> None:
    data = examples()
    assert fingerprint(data) == fingerprint(examples())
    assert isinstance(data.train_x, np.ndarray)
    assert isinstance(data.test_x, np.ndarray)
    found = {fingerprint(data)}
    for name in ("train_x", "train_y", "test_x", "test_y"):
        changed = getattr(data, name).copy()
        changed.reshape(-1)[-1] += 1
        found.add(fingerprint(replace(data, **{name: changed})))
    found.add(fingerprint(replace(data, train_x=data.train_x.astype(np.float64))))
    found.add(fingerprint(replace(data, train_x=(data.train_x,))))
    found.add(fingerprint(replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0])))
    assert len(found) >= 7
    strided = replace(data, train_x=np.repeat(data.train_x, 2, axis=0)[::2])
    assert fingerprint(strided) == fingerprint(data)


@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_a_pause_at_any_step_and_a_power_cut_after_it_change_no_bit(
    tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = Board(tmp_path).perform(give())
    with pytest.raises(Stopped, match="pauses"):
        Board(tmp_path).perform(give(), at)
    again = Board(tmp_path)
    assert same(again.perform(give()), whole)
    assert again.steps == (list(range(at, STEPS + 1)) if at > 1 else list(range(1, STEPS + 1)))
    assert (f"going on at step {at} of {STEPS}" in caplog.text) is (at > 1)


def test_it_goes_on_from_the_last_of_many_pauses(tmp_path: Path) -> None:
    whole = Board(tmp_path).perform(give())
    for at in (2, 4, 7):
        with pytest.raises(Stopped):
            Board(tmp_path).perform(give(), at)
    again = Board(tmp_path)
    assert same(again.perform(give()), whole)
    assert again.steps == [7, 8, 9]


def test_what_changed_meanwhile_begins_anew(tmp_path: Path) -> None:
    other = replace(examples(), train_y=1 - examples().train_y % 2)
    cases: list[tuple[Task, Examples | None, bytes | None]] = [
        (give(seed=9), None, None),
        (give(attempt=1), None, None),
        (give(), other, None),
        (give(), None, Board(tmp_path).perform(give()).keep),
    ]
    for given, data, keep in cases:
        with pytest.raises(Stopped):
            Board(tmp_path).perform(give(), 5)
        again = Board(tmp_path)
        found = again.perform(given, data=data, keep=keep)
        assert again.steps == list(range(1, STEPS + 1))
        assert same(found, Board(tmp_path / "none").perform(given, data=data, keep=keep))


def test_another_version_of_the_runtime_begins_anew(tmp_path: Path) -> None:
    board = Board(tmp_path)
    for version, first in [("onnxruntime 1.2", 5), ("onnxruntime 1.3", 1)]:
        with pytest.raises(Stopped):
            board.perform(give(), at=5, version="onnxruntime 1.2")
        board.perform(give(), version=version)
        assert board.steps[0] == first
        board.file.drop()


def test_checkpoints_come_as_often_as_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []

    def save(_: CheckpointFile, key: str, checkpoint: Checkpoint) -> int:
        assert key
        saved.append(checkpoint.halfway.steps)
        return 1

    monkeypatch.setattr(CheckpointFile, "save", save)
    for every, expected in ((1.0, 9), (3.0, 3), (0.0, 0), (1e9, 0)):
        saved.clear()
        Board(tmp_path, every).perform(give())
        assert len(saved) == expected
    with pytest.raises(Stopped):  # a pause is a pause also where nothing is saved
        Board(tmp_path, 0.0).perform(give(), 4)
    assert saved == []


def test_seconds_and_the_evaluation_are_not_counted_twice(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Board(tmp_path).perform(give(), 6)
    board = Board(tmp_path)
    materials_key = key_of(give(), DEVICE, "onnx", None, examples().fit(PLAN))
    found = board.file.load(materials_key, LASTING)
    assert found is not None
    board.file.save(materials_key, replace(found, trained=1000.0, evaluated=50.0))
    product = board.perform(give())
    assert product.seconds["train"] >= 1000.0
    assert product.seconds["evaluate"] == 50.0
    assert "loss.global" in product.metrics


def test_patience_goes_on_counting(tmp_path: Path) -> None:
    given = give(patience=500.0)
    with pytest.raises(Stopped):
        Board(tmp_path).perform(given, 4)
    board = Board(tmp_path)
    key = key_of(given, DEVICE, "onnx", None, examples().fit(PLAN))
    found = board.file.load(key, LASTING)
    assert found is not None
    board.file.save(key, replace(found, trained=501.0))
    assert board.perform(given).steps == 5  # one step more, and it is enough


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """A place where no file can be made, also by root."""
    (folder / "checkpoint.tmp").mkdir()
    yield
    (folder / "checkpoint.tmp").rmdir()


def test_a_checkpoint_that_cannot_be_written_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Board(tmp_path / "other").perform(give())
    with unwritable(tmp_path):
        assert same(Board(tmp_path, 1.0).perform(give()), whole)
    assert "no checkpoint at step 3" in caplog.text


def test_nothing_of_a_task_that_is_over_is_left(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    file = CheckpointFile(path)
    saver = Saver(file, 1.0)
    assert saver.load(lambda: "key", LASTING) is None
    saver.save(halfway())
    assert path.exists()
    file.drop()
    Saver(file, 1.0, over=lambda: True).save(halfway())
    assert not path.exists()
    looks = iter((False, True))  # it ends while the file is written
    Saver(file, 1.0, over=lambda: next(looks)).save(halfway())
    assert not path.exists()
