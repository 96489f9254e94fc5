"""Two agents with one name, by what they say."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import devices, identity
from coordinator.identity import WINDOW, Names, doubled, hear
from coordinator.status import RunStatus
from coordinator.watching import line_of
from edgepfl.wire import Hello, Refused

DEVICE = "pi-07"
CARD = {"A": 1, "B": 2, "C": 3, "a": 1, "b": 1}  # processes by letter: small ones have the card of A


def hello(process: str, device: str = DEVICE) -> Hello:
    return Hello(device, 1, ("onnx",), 5, 512, "test", identity=CARD[process], incarnation=ord(process))


@dataclass
class Heard:
    """A coordinator that hears one process after the other."""

    names: Names = field(default_factory=dict)
    now: float = 0.0

    def __call__(self, processes: str, *, seconds: float = 1.0) -> str:
        """Who was refused, in order."""
        refused = ""
        for process in processes:
            self.now += seconds
            self.names, answer = hear(self.names, hello(process), self.now)
            if answer is not None:
                assert (answer.device, answer.identity, answer.incarnation) == (DEVICE, CARD[process], ord(process))
                assert doubled(self.names, self.now).keys() == {DEVICE}
                refused += process
        return refused


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("AAAA", ""),
        ("ABBB", ""),  # another card, or a restart
        ("AaB", ""),
        ("ABA", ""),  # perhaps a late message
        ("ABAB", "B"),
        ("AABBAAAABB", "BB"),
        ("ABABABAB", "BBB"),
        ("BABA", "A"),  # the first stays, whatever its number
        ("AaAa", ""),  # one card: a restart, and a message that was late
        ("AaAaAa", "a"),  # a copied card
        ("ABCABC", "BC"),
        ("ACBCBAB", "BB"),
        ("AaBbC", ""),  # a device that restarts again and again
    ],
)
def test_who_comes_second_and_back_is_refused(said: str, refused: str) -> None:
    heard = Heard()
    assert heard(said) == refused
    assert bool(doubled(heard.names, heard.now)) is bool(refused)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_restarts_are_never_refused_though_messages_come_late(starts: list[tuple[bool, bool, bool]]) -> None:
    """Of a process that is over one more message may come, after the first of its successor with the same card."""
    names: Names = {}
    card, before = 0, -1

    def say(process: int) -> None:
        nonlocal names
        said = Hello(DEVICE, 1, ("onnx",), 5, 512, "test", identity=card, incarnation=process)
        names, refused = hear(names, said, 0.0)
        assert refused is None

    for number, (new_card, is_late, again) in enumerate(starts):
        card += new_card
        say(number)
        if is_late and not new_card and before >= 0:
            say(before)
        if again:
            say(number)
        before = number


def test_what_was_long_ago_counts_no_more() -> None:
    heard = Heard()
    assert heard("ABA", seconds=WINDOW) == ""
    assert heard("BABAB", seconds=WINDOW) == ""
    assert heard("A") == ""
    assert heard("B") == ""
    assert heard("AB") == "A"  # B had been heard last
    assert doubled(heard.names, heard.now + WINDOW - 2)
    assert doubled(heard.names, heard.now + WINDOW) == {}


def test_when_the_first_is_gone_the_second_may_come_again() -> None:
    heard = Heard()
    assert heard("ABAB") == "B"
    assert heard("CCC", seconds=5.0) == ""  # the second, started again after the first was ended


def test_who_does_not_say_who_it_is_is_not_judged() -> None:
    names: Names = {}
    for _ in range(4):
        names, refused = hear(names, Hello(DEVICE, 1, ("onnx",), 5, 512, "0.1.0"), 1.0)
        assert (names, refused) == ({}, None)


def test_devices_do_not_mix_and_names_that_are_made_up_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(identity)["MOST"] == devices.MOST
    monkeypatch.setattr(identity, "MOST", 3)
    names: Names = {}
    answers: list[Refused | None] = []
    for at, (process, device) in enumerate((each, name) for each in "ABAB" for name in ("ant", "bee", "cow", "dog")):
        names, answer = hear(names, hello(process, device), float(at))
        answers.append(answer)
    assert [answer.device for answer in answers if answer is not None] == ["ant", "bee", "cow"]
    names, _ = hear(names, hello("A", "dog"), 2 * WINDOW)
    assert names.keys() == {"dog"}


def test_a_name_does_not_remember_processes_without_end() -> None:
    names: Names = {}
    for number in range(100):
        said = Hello(DEVICE, number, ("onnx",), 5, 512, "test", identity=1, incarnation=number)
        names, refused = hear(names, said, 0.0)
        assert refused is None
    assert len(names[DEVICE].turns) == 32


def test_a_name_that_two_have_is_shown() -> None:
    status = RunStatus("run", "running", "", 1, 9, "selecting", "2 of 3 devices", (), {}, "")
    assert "two agents" not in line_of(status)
    shown = line_of(msgspec.structs.replace(status, doubled={DEVICE: "two agents have this name"}))
    assert shown.endswith(f"2 of 3 devices; two agents have one name: {DEVICE}")
