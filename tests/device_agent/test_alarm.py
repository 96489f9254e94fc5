from __future__ import annotations

import asyncio
from collections.abc import Callable

from device_agent.alarm import Alarm


def _now() -> float:
    return 100.0


async def _next_ring(set_: Callable[[Alarm], None]) -> str:
    """Which of two alarms rings first: the one that is looked at, or one a moment later."""
    rung: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def first(name: str) -> Callable[[], None]:
        return lambda: None if rung.done() else rung.set_result(name)

    set_(Alarm(_now, first("it")))
    later = Alarm(_now, first("the other"))
    later.set(100.01)
    return await asyncio.wait_for(rung, 120)


def test_it_rings_at_its_time_and_at_once_where_that_is_past() -> None:
    assert asyncio.run(_next_ring(lambda alarm: alarm.set(100.0))) == "it"
    assert asyncio.run(_next_ring(lambda alarm: alarm.set(3.0))) == "it"
    assert asyncio.run(_next_ring(lambda alarm: alarm.set(200.0))) == "the other"


def test_set_to_never_it_does_not_ring() -> None:
    def changed_its_mind(alarm: Alarm) -> None:
        alarm.set(100.0)
        alarm.set(None)

    assert asyncio.run(_next_ring(changed_its_mind)) == "the other"


def test_after_it_rang_it_may_be_set_to_the_same_time_again() -> None:
    async def twice() -> None:
        rung = asyncio.Event()
        alarm = Alarm(_now, rung.set)
        for _ in range(2):
            alarm.set(100.0)
            await asyncio.wait_for(rung.wait(), 120)
            rung.clear()

    asyncio.run(twice())


def test_the_same_time_again_makes_no_timer() -> None:
    async def timers() -> int:
        alarm = Alarm(_now, lambda: None)
        for _ in range(1000):
            alarm.set(200.0)
        found = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]  # there is no public count
        alarm.set(None)
        return found

    assert asyncio.run(timers()) == 1
