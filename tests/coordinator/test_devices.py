"""Who is here: sessions, wills, and a fleet that cannot be made to grow without end."""

from __future__ import annotations

import pytest

from coordinator import devices
from coordinator.devices import GREETING, Fleet, doubt, farewell, repeats, welcome
from edgepfl.wire import Gone, Hello

ONNX = frozenset({"onnx"})


def hello(device: str, session: int = 1, *, examples: int = 5, runtimes: tuple[str, ...] = ("onnx",)) -> Hello:
    return Hello(device, session, runtimes, examples, 512, "test")


def fleet(*hellos: Hello) -> Fleet:
    whole = Fleet()
    for each in hellos:
        whole = welcome(whole, each)
    return whole


def test_present_are_those_that_could_work() -> None:
    whole = fleet(
        hello("cat"),
        hello("ant"),
        hello("dry", examples=0),
        hello("old", runtimes=("executorch",)),
        hello("bare", runtimes=()),
    )
    assert whole.present(ONNX) == ("ant", "cat")
    assert whole.present(frozenset({"onnx", "executorch"})) == ("ant", "cat", "old")
    assert [whole.can(device, ONNX) for device in ("ant", "dry", "old", "nobody")] == [True, False, False, False]


def test_a_device_leaves_with_its_own_session_only() -> None:
    whole = fleet(hello("ant", 7))
    assert farewell(whole, Gone("ant", 6)) == whole
    assert farewell(whole, Gone("bee", 7)) == whole
    assert farewell(whole, Gone("ant", 7)).present(ONNX) == ()


def test_it_comes_back_with_a_new_session() -> None:
    whole = farewell(fleet(hello("ant", 7)), Gone("ant", 7))
    back = welcome(whole, hello("ant", 8))
    assert back.present(ONNX) == ("ant",)
    assert farewell(back, Gone("ant", 7)) == back  # the will of the old session comes late


def test_a_hello_of_an_older_session_is_late_while_a_newer_is_here() -> None:
    whole = fleet(hello("ant", 7, examples=5))
    assert welcome(whole, hello("ant", 6, examples=9)) == whole
    assert welcome(whole, hello("ant", 7, examples=9)).devices["ant"].hello.examples == 9


def test_a_device_that_lost_its_storage_is_not_locked_out() -> None:
    whole = farewell(fleet(hello("ant", 7)), Gone("ant", 7))
    new = welcome(whole, hello("ant", 1))
    assert new.present(ONNX) == ("ant",)
    assert farewell(new, Gone("ant", 1)).present(ONNX) == ()


def test_doubt_lasts_until_the_next_hello() -> None:
    whole = doubt(fleet(hello("ant"), hello("bee")), ("ant", "nobody"))
    assert whole.present(ONNX) == ("bee",)
    assert whole.devices.keys() == {"ant", "bee"}
    assert welcome(whole, hello("ant")).present(ONNX) == ("ant", "bee")


def test_a_full_fleet_forgets_the_absent_and_keeps_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "MOST", 3)
    whole = farewell(fleet(hello("ant"), hello("bee"), hello("cat")), Gone("bee", 1))
    whole = welcome(whole, hello("dog"))
    assert whole.devices.keys() == {"ant", "cat", "dog"}
    assert welcome(whole, hello("eel")) == whole
    assert welcome(whole, hello("ant", 2)).devices["ant"].hello.session == 2


def test_a_fleet_is_a_value() -> None:
    whole = fleet(hello("ant"))
    welcome(whole, hello("bee"))
    farewell(whole, Gone("ant", 1))
    assert whole == fleet(hello("ant"))
    assert whole.present(ONNX) == ("ant",)


def test_the_same_hello_a_moment_later_says_nothing_new() -> None:
    whole = welcome(Fleet(), hello("ant"), 10.0)
    assert repeats(whole, hello("ant"), 10.0 + GREETING / 2)
    assert not repeats(whole, hello("ant"), 10.0 + GREETING)
    assert not repeats(whole, hello("ant", 2), 10.0)  # a new session
    assert not repeats(whole, hello("ant", examples=9), 10.0)
    assert not repeats(whole, hello("bee"), 10.0)
    assert not repeats(doubt(whole, ("ant",)), hello("ant"), 10.0)  # it was taken for absent
