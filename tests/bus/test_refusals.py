"""Refused messages are counted, and who sends too many is not read for a while; nobody else is."""

from __future__ import annotations

from edgepfl.bus.refusals import MOST_NAMES, UNREAD, Bounds, Refusals

BOUNDS = Bounds(most=3, recovery=2.0, silence=60.0)


def flooded(at: float = 0.0) -> Refusals:
    found = Refusals(BOUNDS)
    assert [found.count("eve", "malformed", at) for _ in range(4)] == [False, False, False, True]
    return found


def test_a_flood_silences_its_sender_alone() -> None:
    found = flooded()
    assert found.unread("eve", 1.0)
    assert not found.unread("ant", 1.0)
    assert dict(found.counts) == {"malformed": 4, UNREAD: 1}


def test_a_message_now_and_then_silences_nobody() -> None:
    found = Refusals(BOUNDS)
    assert not any(found.count("eve", "malformed", 2.0 * number) for number in range(100))


def test_silence_ends_and_is_told_once() -> None:
    found = flooded()
    assert found.back(59.9) == ()
    assert found.back(60.0) == ("eve",)
    assert found.back(61.0) == ()
    assert not found.unread("eve", 61.0)
    assert not found.count("eve", "malformed", 61.0)


def test_silence_ends_without_anybody_looking() -> None:
    assert not flooded().unread("eve", 60.0)


def test_what_has_no_sender_silences_nobody() -> None:
    found = Refusals(BOUNDS)
    assert not any(found.count("", "topic", 0.0) for _ in range(100))
    assert found.counts["topic"] == 100


def test_invented_names_cost_a_bounded_memory() -> None:
    found = Refusals(BOUNDS)
    for number in range(3 * MOST_NAMES):
        found.count(f"eve-{number}", "malformed", 0.0)
    assert len(found._senders) == MOST_NAMES


def test_the_log_hears_of_the_first_and_then_ever_fewer() -> None:
    found, told = Refusals(BOUNDS), 0
    for _ in range(1 << 12):
        found.count("", "topic", 0.0)
        told += found.worth_telling("topic")
    assert told == 3 + 11  # 1, 2, 3, 4, 8 ... 4096
