"""Promise 2, and half of promise 4: processes killed, and the power cut, just before and just after their fsyncs.

In full (``EDGEPFL_SOAK=1``) at every fsync of a round, each of six algorithms in turn; else at some of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from _disk import LEFT
from _matrix import SOAK, Row
from _theatre import SETTINGS, Cut, KilledAgent, KilledCoordinator, Theatre

from simulators.broker import BrokerHandle

pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("broker", ["mosquitto"], indirect=True),
    pytest.mark.timeout(1800 if SOAK else 300),
]
PASS_MARK = 5.0  # seconds until a killed coordinator goes on with its round
SOME = {  # in a form that fits CI: (fsync, whether it is done, what is left)
    KilledCoordinator: {
        "feddyn": (Cut(1, after=True, left="nothing"), Cut(7, after=False), Cut(12, after=True, left="torn")),
        "apfl": (Cut(16, after=False, left="names"), Cut(16, after=True), Cut(18, after=True, left="contents")),
    },
    KilledAgent: {
        "feddc": (Cut(1, after=False), Cut(1, after=True, left="names"), Cut(2, after=True, left="torn")),
        "ditto": (Cut(3, after=False, left="nothing"), Cut(4, after=False, left="torn"), Cut(4, after=True)),
    },
}


def every(syncs: int) -> list[Cut]:
    """Every cut of a round with so many fsyncs."""
    times = [(sync, after) for after in (False, True) for sync in range(1, syncs + 1)]
    return [Cut(sync, after=after, left=left) for left in LEFT for sync, after in times]


async def survived(theatre: Theatre, algorithm: str, cuts: tuple[Cut, ...]) -> list[Row]:
    """A run in peace and the same with cuts; nothing may differ."""
    peace, _ = await theatre.train(algorithm, cuts)
    found, rows = await theatre.train(algorithm, cuts, peace)
    assert [row for row in rows if not row.same] == []
    assert found.states == peace.states
    assert found.results == peace.results
    assert len(set(peace.states.values())) == len(cuts) + 2  # every round of training changed it
    return rows


@pytest.mark.promise(2)
@pytest.mark.promise(4)
@pytest.mark.skipif(SOAK, reason="all of them are in the full form")
@pytest.mark.parametrize("kind", [KilledCoordinator, KilledAgent])
def test_whoever_is_killed_at_an_fsync_the_run_ends_with_the_same_bits(
    tmp_path: Path,
    broker: BrokerHandle,
    kind: type[KilledCoordinator | KilledAgent],
    matrix: list[Row],
) -> None:
    theatre = kind(tmp_path.resolve(), broker.url)

    async def play() -> None:
        async with theatre.playing():
            for algorithm, cuts in SOME[kind].items():
                rows = await survived(theatre, algorithm, cuts)
                assert all(row.point != "nowhere" for row in rows)
                matrix.extend(rows)

    asyncio.run(play())


@pytest.mark.promise(2)
@pytest.mark.promise(4)
@pytest.mark.skipif(not SOAK, reason="EDGEPFL_SOAK=1 runs it")
@pytest.mark.parametrize("kind", [KilledCoordinator, KilledAgent])
def test_every_fsync_of_a_round_before_and_after_with_every_kind_of_cut(
    tmp_path: Path,
    broker: BrokerHandle,
    kind: type[KilledCoordinator | KilledAgent],
    matrix: list[Row],
) -> None:
    theatre = kind(tmp_path.resolve(), broker.url)
    seen: list[Row] = []

    async def play() -> None:
        async with theatre.playing():
            looked, _ = await theatre.train("feddyn", (Cut(1, after=False),) * 3)
            cuts = every(max(looked.syncs))
            for number, algorithm in enumerate(SETTINGS):
                seen.extend(await survived(theatre, algorithm, tuple(cuts[number :: len(SETTINGS)])))

    asyncio.run(play())
    struck = [row for row in seen if row.point != "nowhere"]
    matrix.extend(struck)
    assert len(struck) >= 0.9 * len(seen)  # how many fsyncs a round has varies by who reports first
    assert max(row.seconds for row in struck if row.seconds is not None) < PASS_MARK
