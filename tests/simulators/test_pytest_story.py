"""What a failing test prints of its fleet."""

from __future__ import annotations

import pytest

from coordinator.status import RunStatus
from simulators.emulation.report import EmulationReport, Told
from simulators.pytest_plugin.fleet import Progress
from simulators.pytest_plugin.story import LAST_WAITS, MOST_DEVICES, MOST_LINES, account, story, striking

USUAL = (Told(0.1, "task", 1), Told(0.5, "report", 1), Told(0.9, "accepted", 1))


def report(**fields: object) -> EmulationReport:
    plain: dict[str, object] = {
        "scenario": "s",
        "seed": 5,
        "time": "real",
        "broker": "mosquitto",
        "algorithm": "ditto",
        "model": "m",
        "agents": 9,
        "parameters": 10,
        "run": "run-1",
        "status": "done",
        "stories": {f"device-{number:03}": USUAL for number in range(9)},
    }
    return EmulationReport(**{**plain, **fields})  # type: ignore[arg-type]  # as each test gives them


def with_(**told: tuple[Told, ...]) -> dict[str, tuple[Told, ...]]:
    return {**report().stories, **{name.replace("_", "-"): each for name, each in told.items()}}


def test_the_device_to_whom_something_rare_happened_comes_first_without_being_asked_for() -> None:
    struck = report(stories=with_(device_004=(*USUAL, Told(1.0, "power cut"))))
    assert striking(struck)[0] == "device-004"
    assert "power cut" in account(struck)
    assert "power cut" not in account(report())


def test_those_asked_for_come_before_all_and_none_is_left_out() -> None:
    asked = [f"device-{number:03}" for number in (8, 7, 6, 5, 4, 3)]
    struck = report(stories=with_(device_000=(Told(1.0, "power cut"),)))
    assert striking(struck, [*asked, "device-008", "nobody"])[: len(asked)] == tuple(asked)


def test_what_happened_to_most_is_not_rare() -> None:
    everyone = {f"device-{number:03}": (*USUAL, Told(1.0, "power cut")) for number in range(5)}
    told = striking(report(stories={**report().stories, **everyone}))
    assert told == ("device-000",)  # the worst one alone: all are alike, and the names decide


def test_the_worst_device_is_shown_and_ties_go_by_name() -> None:
    accuracy = {"personal": {f"device-{number:03}": 0.9 - (number == 6) for number in range(9)}}
    assert striking(report(accuracy=accuracy)) == ("device-006",)
    assert striking(report()) == ("device-000",)


def test_a_quarantined_or_doubled_device_stands_out() -> None:
    assert striking(report(quarantined=("device-007",)))[0] == "device-007"
    assert striking(report(doubled={"device-002": "stop one of them"}))[0] == "device-002"
    assert "stop one of them" in account(report(doubled={"device-002": "stop one of them"}))


def test_no_more_devices_than_fit_a_screen() -> None:
    stories = {f"device-{number:03}": (Told(1.0, f"oddity {number}"),) for number in range(40)}
    text = account(report(stories=stories))
    assert text.count("the story of") == MOST_DEVICES
    assert "(36 more devices have stories)" in text


def test_a_long_story_keeps_its_end() -> None:
    told = tuple(Told(float(number), "task", number) for number in range(MOST_LINES + 5))
    text = story("d", told)
    assert "... 5 lines before" in text
    assert f"task of round {MOST_LINES + 4}" in text
    assert "task of round 4" not in text
    assert "nothing happened to it" in story("d", ())


def test_the_seed_the_file_and_how_to_have_it_again_are_told() -> None:
    waits = tuple(f"wait {number}" for number in range(9))
    text = account(report(status="failed", why="too few", waits=waits), kept="a/report.json", replay="pytest x")
    assert "failed (too few)" in text
    assert "a/report.json" in text
    assert text.endswith("seed 5: pytest x")
    assert [f"wait {number}" in text for number in range(9)] == [False] * (9 - LAST_WAITS) + [True] * LAST_WAITS


def test_a_fleet_that_never_came_to_anything_can_be_told_of() -> None:
    assert "(not started)" in account(report(run="", status="", stories={}))


def test_rounds_are_those_that_trained_without_the_one_that_only_evaluates() -> None:
    text = account(report(rounds=4, seconds={1: 0.5, 2: 0.5, 3: 0.5}))
    assert "done, 3 rounds trained" in text


def test_the_progress_line_never_counts_beyond_the_rounds_that_train(caplog: pytest.LogCaptureFixture) -> None:
    see = Progress()
    with caplog.at_level("INFO", logger="edgepfl.fleet"):
        for number, status in ((0, "running"), (3, "running"), (4, "done")):  # the fourth round only evaluates
            see(RunStatus("run-1", status, "", number, 3, "", "", (), {}, ""))
    assert caplog.messages == [
        "run-1: running, round 0 of 3",
        "run-1: running, round 3 of 3",
        "run-1: done, round 3 of 3",
    ]
