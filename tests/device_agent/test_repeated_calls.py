"""A graph called many times in memory of its own gives what single runs give, and never reads what it writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import pytest
from _graphs import GRAPHS, SIZE, bundle
from _pte import executorch_bundle
from _runner_library import library_folder

from device_agent.runners import Array, Repeating, Runner, repeat
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from device_agent.runners.onnx import OnnxRunner
from device_agent.runners.repeated import Repeated
from edgepfl.errors import BundleError, GraphFailed
from edgepfl.plan import Entry

Make: TypeAlias = Callable[[], Repeating]
STEP = GRAPHS[Entry.STEP]


def on_onnx() -> Repeating:
    return OnnxRunner(bundle())


def on_executorch() -> Repeating:
    return ExecutorchRunner(executorch_bundle(), ExecutorchSettings(folder=library_folder()))


@pytest.fixture(params=[on_onnx, on_executorch])
def runner(request: pytest.FixtureRequest) -> Repeating:
    made: Repeating = request.param()
    return made


class Single:
    """A runner that does not repeat."""

    def __init__(self, runner: Runner) -> None:
        self.run = runner.run


def drawn(seed: int) -> list[Array]:
    """The step's inputs: x, lr, batch_x, weight."""
    source = np.random.default_rng(seed)
    return [np.asarray(source.uniform(0.5, 1, port.spec.shape), np.float32) for port in STEP.inputs]


def single(runner: Runner, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of one run."""
    feeds = {port.name: array for port, array in zip(STEP.inputs, inputs, strict=True)}
    results = runner.run(Entry.STEP, feeds)
    return [results[port.name] for port in STEP.outputs]


def assert_same(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def trained(runner: Runner, seed: int, steps: int = 40) -> Iterator[list[Array]]:
    """The outputs of each step: the state goes back in, and each minibatch is written over the last one."""
    call = repeat(runner, Entry.STEP, STEP)
    inputs, source = drawn(seed), np.random.default_rng(seed)
    for _ in range(steps):
        inputs[2][:] = source.standard_normal((SIZE, 3), np.float32)
        outputs = call(inputs)
        yield [array.copy() for array in outputs]
        inputs[0] = outputs[0]


def test_a_training_has_the_bits_of_single_runs(runner: Repeating) -> None:
    for found, expected in zip(trained(runner, 1), trained(Single(runner), 1), strict=True):
        assert_same(found, expected)
    assert not isinstance(Single(runner), Repeating)


def test_outputs_are_written_in_turn_and_inputs_are_left_alone(runner: Repeating) -> None:
    call, inputs = runner.repeat(Entry.STEP), drawn(2)
    before = [array.copy() for array in inputs]
    first = call(inputs)
    kept = [array.copy() for array in first]
    second = call([first[0], *inputs[1:]])
    assert_same(first, kept)
    assert not any(np.shares_memory(one, other) for one in first for other in (*second, *inputs))
    third = call([second[0], *inputs[1:]])
    assert [np.shares_memory(one, other) for one, other in zip(first, third, strict=True)] == [True] * len(first)
    assert_same(inputs, before)


def test_an_output_that_comes_back_two_calls_later_is_copied(runner: Repeating) -> None:
    """It is what this very call writes, and so is a view of it."""
    call, inputs = runner.repeat(Entry.STEP), drawn(3)
    for view in (False, True):
        old = call(inputs)[0]
        kept = old.copy()
        call(inputs)
        again = [old[:] if view else old, *inputs[1:]]
        found = [array.copy() for array in call(again)]
        assert_same(found, single(runner, [kept, *inputs[1:]]))
        call(inputs)


class _Hasty:
    """A runtime that spoils its outputs before it reads its inputs, and keeps none of them alive."""

    def __init__(self, outputs: Sequence[Array]) -> None:
        self._outputs = [weakref.ref(array) for array in outputs]
        self._inputs: dict[int, weakref.ref[Array]] = {}

    def put(self, index: int, array: Array) -> None:
        assert array.flags.c_contiguous
        self._inputs[index] = weakref.ref(array)

    def run(self) -> None:
        (output,), (given,) = (alive(self._outputs), alive(self._inputs.values()))
        output.fill(np.nan)
        output[:] = 2 * given


def alive(references: Iterable[weakref.ref[Array]]) -> list[Array]:
    arrays = [reference() for reference in references]
    assert all(array is not None for array in arrays)
    return [array for array in arrays if array is not None]


@pytest.mark.parametrize("given", [lambda array: array, lambda array: array[:], lambda array: array[::-1]])
def test_no_call_reads_what_it_writes(given: Callable[[Array], Array]) -> None:
    call = Repeated(Entry.BEGIN, GRAPHS[Entry.BEGIN], _Hasty)
    (one,) = call([np.array([1, 2, 3], np.float32)])
    (two,) = call([given(one)])
    for written, sums in ((one, [4, 8, 12]), (two, [8, 16, 24])):
        (found,) = call([given(written)])  # this very call writes it
        assert found is written
        assert sorted(found.tolist()) == sums


def test_inputs_may_lie_anywhere_and_are_read_anew_in_every_call(runner: Repeating) -> None:
    call, inputs = runner.repeat(Entry.STEP), drawn(4)
    strided = np.zeros((SIZE, 6), np.float32)[:, ::2]
    crooked = np.zeros(SIZE * 3 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(SIZE, 3)
    frozen = np.ones((SIZE, 3), np.float32)
    frozen.setflags(write=False)
    for batch in (strided, crooked, frozen):
        for seed in range(4):
            if batch.flags.writeable:
                batch[:] = np.random.default_rng(seed).standard_normal((SIZE, 3))
            given = [*inputs[:2], batch, inputs[3]]
            assert_same(call(given), single(runner, given))


def test_a_graph_that_gives_its_input_back_gives_a_copy(runner: Repeating) -> None:
    call = runner.repeat(Entry.BEGIN)
    w = np.array([1, 2, 3], np.float32)
    for _ in range(4):
        (x,) = call([w])
        np.testing.assert_array_equal(x, [1, 2, 3])
        assert not np.shares_memory(x, w)
        w = x


def test_what_was_given_may_be_forgotten(runner: Repeating) -> None:
    """The call keeps its inputs alive as long as it may read them."""
    call = runner.repeat(Entry.STEP)
    for seed in range(20):
        found = call(drawn(seed))
        waste = [np.full(size, np.nan, np.float32) for size in (1, 3, 4, 12) for _ in range(20)]
        assert_same(found, single(runner, drawn(seed)))
        assert len(waste) == 80


def test_many_threads_repeat_one_graph_each_for_itself(runner: Repeating) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: list(trained(runner, seed)), range(16)))
    for seed, steps in enumerate(found):
        for outputs, expected in zip(steps, trained(Single(runner), seed), strict=True):
            assert_same(outputs, expected)


@pytest.mark.parametrize(
    ("index", "wrong", "what"),
    [
        (0, np.ones(5, np.float32), r"it takes float32\[3\] for 'x', not float32\[5\]"),
        (2, np.ones((SIZE, 3)), r"it takes float32\[4, 3\] for 'batch_x', not float64\[4, 3\]"),
    ],
)
def test_an_input_of_another_kind_is_refused_and_changes_nothing(
    runner: Repeating, index: int, wrong: Array, what: str
) -> None:
    call, inputs = runner.repeat(Entry.STEP), drawn(5)
    expected = [array.copy() for array in call(inputs)]
    for _ in range(2):
        with pytest.raises(GraphFailed, match=what) as caught:
            call([*inputs[:index], wrong, *inputs[index + 1 :]])
        assert caught.value.where == "graph step"
        assert_same(call(inputs), expected)
    with pytest.raises(ValueError, match="longer"):
        call(inputs[:-1])


def test_a_graph_that_the_bundle_lacks_is_named(runner: Repeating) -> None:
    with pytest.raises(BundleError, match="no such graph") as caught:
        runner.repeat(Entry.TUNE)
    assert caught.value.where == "graph tune"
