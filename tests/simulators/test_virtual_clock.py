"""The event loop of a virtual clock, and work that takes virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from simulators import clock
from simulators.clock import Inline, PowerCut, Processor, Standstill, VirtualLoop, ahead, spend


def test_time_jumps_from_timer_to_timer_in_order() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(sleeper("week", 7 * 86400.0), sleeper("second", 1.0), sleeper("day", 86400.0))

    clock.run(main())
    assert seen == [("second", 1.0), ("day", 86400.0), ("week", 7 * 86400.0)]


def test_who_waits_for_nothing_is_told() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Standstill, match="no timer"):
        clock.run(main())


@pytest.mark.parametrize("start", [0.0, 1e3, 60 * 86400.0])
def test_a_step_below_the_clocks_resolution_passes(start: float) -> None:
    loop = VirtualLoop(start)
    try:
        loop.run_until_complete(asyncio.sleep(1e-12))
        loop.run_until_complete(asyncio.sleep(0.0))
        loop.run_until_complete(asyncio.sleep(1e-9))
        assert start <= loop.time() <= start + 3e-9
    finally:
        loop.close()


def test_a_plain_executor_is_not_used_and_errors_are_the_callers() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
        assert await loop.run_in_executor(Inline(), divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 7, 0)
        assert loop.time() == 0.0

    clock.run(main())
    with pytest.raises(ZeroDivisionError):
        Inline().submit(divmod, 7, 0).result()


def _worker(seen: list[float], steps: int, seconds: float) -> int:
    for _ in range(steps):
        spend(seconds)
        seen.append(asyncio_time() + ahead())
    return steps


_loops: list[asyncio.AbstractEventLoop] = []


def asyncio_time() -> float:
    """The time of the loop under test, asked from a strand."""
    return _loops[-1].time()


def _play(main: Coroutine[Any, Any, None]) -> None:
    async def scene() -> None:
        _loops.append(asyncio.get_running_loop())
        await main

    clock.run(scene())


@pytest.mark.parametrize("quantum", [0.0, 0.5, 100.0])
def test_work_takes_what_it_spends_times_its_processors_factor(quantum: float) -> None:
    async def main() -> None:
        loop, seen = asyncio.get_running_loop(), list[float]()
        assert await loop.run_in_executor(Processor(4.0, quantum), _worker, seen, 3, 0.25) == 3
        assert seen == [1.0, 2.0, 3.0]
        assert loop.time() == 3.0

    _play(main())


def test_one_processor_does_one_thing_after_the_other_and_two_do_both_at_once() -> None:
    async def main() -> None:
        loop, one, two = asyncio.get_running_loop(), Processor(), Processor()
        await asyncio.gather(*(loop.run_in_executor(one, _worker, [], 2, 1.0) for _ in range(3)))
        assert loop.time() == 6.0
        await asyncio.gather(*(loop.run_in_executor(each, _worker, [], 2, 1.0) for each in (one, two)))
        assert loop.time() == 8.0

    _play(main())


@pytest.mark.parametrize("quantum", [0.0, 100.0])
def test_a_power_cut_ends_work_where_it_is(quantum: float) -> None:
    async def main() -> None:
        loop, processor, seen = asyncio.get_running_loop(), Processor(1.0, quantum), list[float]()
        first = loop.run_in_executor(processor, _worker, seen, 5, 1.0)
        second = loop.run_in_executor(processor, _worker, seen, 5, 1.0)
        loop.call_later(2.5, processor.cut)
        await asyncio.gather(first, second, return_exceptions=True)
        assert first.cancelled()
        assert second.cancelled()
        assert loop.time() == 2.5
        assert seen == ([1.0, 2.0] if quantum == 0 else [1.0, 2.0, 3.0, 4.0, 5.0])
        assert await loop.run_in_executor(processor, _worker, [], 1, 1.0) == 1  # there is power again
        assert loop.time() == 3.5

    _play(main())


def test_work_that_meets_a_flag_sees_it_within_the_quantum() -> None:
    flag: list[bool] = []

    def until_flagged() -> int:
        for done in range(100):
            if flag:
                return done
            spend(1.0)
        return 100

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.5, lambda: flag.append(True))
        assert await loop.run_in_executor(Processor(1.0, 0.0), until_flagged) == 3

    _play(main())


def test_time_passes_only_in_work() -> None:
    with pytest.raises(RuntimeError, match="no processor"):
        spend(1.0)
    assert ahead() == 0.0
    assert not issubclass(PowerCut, Exception)  # a handler of errors must not go on with it
