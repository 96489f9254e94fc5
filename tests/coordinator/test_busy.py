"""Devices that still end a step: who is told again, and when they are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.busy import Busy, Work

LEASE = 8.0
TOLD = Busy().told(("ant", "bee"), (3, 1), "enough reports", 10.0, LEASE)


def test_until_they_say_so() -> None:
    assert "ant" in TOLD
    assert TOLD.works["ant"] == Work(3, 1, "enough reports", until=18.0, again=12.0)
    assert "ant" not in TOLD.stopped("ant", (3, 1))
    assert "bee" in TOLD.stopped("ant", (3, 1))
    assert TOLD.stopped("ant", (3, 0)) == TOLD  # of an earlier attempt
    assert "ant" not in TOLD.stopped("ant", (4, 0))  # it has gone over to a later one, and ended that
    assert TOLD.stopped("cat", (3, 1)) == TOLD
    assert "ant" not in TOLD.free("ant")


def test_they_are_told_again_four_times_a_lease() -> None:
    state, again = TOLD, []
    for tenth in range(100, 181):
        state, due = state.looked(tenth / 10, LEASE)
        again += [tenth / 10] * ("ant" in due)
    assert again == [12.0, 14.0, 16.0]
    assert state == Busy()


def test_while_the_broker_was_away_nobody_could_answer() -> None:
    state, due = TOLD.renewed(1000.0, LEASE).looked(1000.0, LEASE)
    assert due.keys() == {"ant", "bee"}
    assert {work.until for work in state.works.values()} == {1008.0}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.floats(0, 3)), max_size=20))
def test_nobody_is_busy_for_longer_than_a_lease(told: list[tuple[str, int, float]]) -> None:
    state, now = Busy(), 0.0
    for device, attempt, seconds in told:
        state = state.told((device,), (1, attempt), "", now, LEASE)
        now += seconds
        state, _ = state.looked(now, LEASE)
    assert state.looked(now + LEASE, LEASE)[0] == Busy()
