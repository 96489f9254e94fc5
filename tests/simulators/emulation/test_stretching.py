"""A slow device's tasks: the same result, later, and no later than it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from device_agent.interpreter import Stopped
from device_agent.work import Product
from simulators.emulation.spoiling import NAN, Spoiling
from simulators.emulation.stretching import Slowed, Stretching

PRODUCT = Product(b"keep", "", b"12345678", None, 5, {}, {"train": 2.0, "load": 0.5})
FOR_EVER = 1e12
ROUNDS = 20_000  # of arithmetic, so that a thread's clock moves


class Asked(msgspec.Struct, frozen=True):
    """What of a task matters here."""

    patience: float = 0.0


def work(task: Asked, _: object, on_step: Callable[[int], None]) -> Product:
    on_step(0)
    sum(number * number for number in range(ROUNDS))
    return replace(PRODUCT, metrics={"patience": task.patience})


def done(factor: float, speedup: float = 1.0, *, patience: float = 0.0, stop: int = 1 << 30) -> Product:
    """The product of a task that a slow device does; it is stopped when it is asked for the ``stop``-th time."""
    asked = SimpleNamespace(times=0)

    def on_step(_: int) -> None:
        asked.times += 1
        if asked.times >= stop:
            raise Stopped("enough")

    async def play(pool: ThreadPoolExecutor) -> Product:
        slow = Stretching(pool, factor, speedup)
        loop = asyncio.get_running_loop()
        arguments: Any = (Asked(patience), None, on_step)
        async with asyncio.timeout(120):
            return await loop.run_in_executor(slow, work, *arguments)

    with ThreadPoolExecutor(1) as pool:
        return asyncio.run(play(pool))


def test_the_result_is_the_same_and_its_seconds_are_the_devices() -> None:
    found = done(4.0, patience=8.0)
    assert found.upload == PRODUCT.upload
    assert found.seconds == {"train": 8.0, "load": 2.0}
    assert found.metrics == {"patience": 2.0}  # on a machine four times as fast it is over after a quarter of the time


def test_one_that_is_stopped_while_it_waits_ends() -> None:
    with pytest.raises(Stopped):
        done(FOR_EVER, stop=2)


def test_one_that_fails_fails_at_once() -> None:
    with pytest.raises(Stopped):
        done(FOR_EVER, stop=1)


def test_a_speedup_takes_the_wait_back() -> None:
    assert done(FOR_EVER, FOR_EVER).steps == PRODUCT.steps


def test_devices_as_fast_as_this_machine_use_its_pool_itself() -> None:
    async def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            slowed = Slowed(pool)
            assert slowed.by(1.0) is pool
            assert slowed.by(3.0) is slowed.by(3.0)
            assert slowed.by(3.0) is not slowed.by(4.0)
            assert Slowed(pool, speedup=10.0).by(9.0) is pool

    asyncio.run(play())


@pytest.mark.parametrize("wrong", [False, True])
def test_spoilt_updates_end_with_nan_and_are_as_long(wrong: bool) -> None:  # noqa: FBT001  a parameter of pytest's
    with ThreadPoolExecutor(1) as pool:
        spoiling = Spoiling(pool)
        spoiling.wrong = wrong
        found = spoiling.submit(lambda: PRODUCT).result(120)
    assert found.upload == (b"1234" + NAN if wrong else PRODUCT.upload)
    assert found.keep == PRODUCT.keep


def test_what_a_spoilt_device_fails_at_it_fails_at() -> None:
    def fail() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no"):
        Spoiling(pool).submit(fail).result(120)
