"""When the coordinator hears of a device's conditions: at once when one is lost, and never more often than it helps."""

from __future__ import annotations

from device_agent.conditions_outlook import HOLD, REFRESH, Outlook
from edgepfl.eligibility import Conditions, Readings, digest

ASKED = Conditions(charging=True, max_temperature=75.0)
WELL = Readings(powered=True, temperature=50.0)
UNPLUGGED = Readings(powered=False, temperature=50.0)
NEW = Outlook()


def at_work(readings: Readings = WELL, at: float = 0.0) -> Outlook:
    """A device that heard of the conditions and said how it stands to them."""
    return NEW.under(ASKED, readings, at).telling(at)


def test_nothing_is_asked_until_somebody_asks() -> None:
    assert NEW.seen(UNPLUGGED, 5.0) == NEW
    assert (NEW.judged, NEW.reasons, NEW.is_news(5.0)) == ("", (), False)


def test_conditions_that_come_are_judged_at_once_and_go_at_once() -> None:
    asked = NEW.under(ASKED, UNPLUGGED, 5.0)
    assert (asked.judged, asked.reasons, asked.why) == (digest(ASKED), ("not charging",), "not charging")
    assert asked.is_news(5.0)
    over = asked.telling(5.0).under(None, Readings(), 6.0)
    assert (over.policy, over.unmet, over.is_news(6.0)) == (None, (), True)


def test_a_loss_is_news_once() -> None:
    lost = at_work().seen(UNPLUGGED, 1.0)
    assert lost.is_news(1.0)
    told = lost.telling(1.0)
    assert not told.is_news(1.0)
    assert not told.seen(UNPLUGGED, 2.0).is_news(2.0)


def test_what_comes_and_goes_faster_than_the_hold_counts_as_gone() -> None:
    outlook, news = at_work(), 0
    for second in range(1, 60):
        outlook = outlook.seen(UNPLUGGED if second % 2 else WELL, float(second))
        if outlook.is_news(float(second)):
            news += 1
            outlook = outlook.telling(float(second))
    assert news <= 2 * 60 / HOLD
    back = at_work().seen(UNPLUGGED, 100.0)
    assert back.seen(WELL, 100.0 + HOLD - 0.1).unmet == back.unmet
    assert back.seen(WELL, 100.0 + HOLD).unmet == ()


def test_a_number_that_creeps_up_to_its_limit_is_met_after_the_margin() -> None:
    hot = at_work(Readings(powered=True, temperature=80.0))
    assert hot.seen(Readings(powered=True, temperature=74.0), 99.0).reasons == ("temperature 74 C, at most 72",)
    assert hot.seen(Readings(powered=True, temperature=71.9), 99.0).reasons == ()


def test_newer_numbers_of_the_same_reason_are_told_now_and_then() -> None:
    told = at_work(Readings(powered=True, temperature=80.0))
    hotter = told.seen(Readings(powered=True, temperature=90.0), REFRESH - 1)
    assert hotter.reasons == ("temperature 90 C, at most 75",)
    assert not hotter.is_news(REFRESH - 1)
    assert hotter.is_news(REFRESH)


def test_one_reason_in_place_of_another_is_news_within_the_hold() -> None:
    unplugged = at_work(UNPLUGGED)
    hot = unplugged.seen(Readings(powered=True, temperature=80.0), 1.0)
    assert hot.is_news(1.0)
    assert hot.reasons == ("temperature 80 C, at most 75",)


def test_other_conditions_are_judged_without_the_margins_of_the_old_ones() -> None:
    hot = at_work(Readings(powered=True, temperature=80.0))
    asked = Conditions(max_temperature=74.0)
    assert hot.under(asked, Readings(temperature=73.0), 1.0).unmet == ()
