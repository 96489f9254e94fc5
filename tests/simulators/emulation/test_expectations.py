"""What an emulation must have come to: each expectation holds at its limit, and fails beyond it with a story."""

from __future__ import annotations

import msgspec
import pytest

from simulators.emulation.expectations import LINES, failures, story
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Expectations

STORIES = {
    "device-000": (
        Told(0.1, "connected"),
        Told(0.5, "task", 1),
        Told(0.9, "report", 1),
        Told(1.0, "accepted", 1),
        Told(1.5, "report", 2),
        Told(1.9, "accepted", 2),
    ),
    "device-001": (Told(0.5, "task", 1), Told(0.9, "report", 1), Told(1.0, "accepted", 1), Told(1.2, "power cut", 2)),
    "device-002": (Told(0.2, "declined", 1, "not charging"), Told(1.7, "report", 2)),
}
REPORT = EmulationReport(
    scenario="x",
    seed=1,
    time="real",
    broker="mosquitto",
    algorithm="fedavg",
    model="mlp-9k",
    agents=3,
    parameters=100,
    run="x-1",
    status="done",
    rounds=2,
    seconds={1: 1.0, 2: 3.0},
    reports={1: 2, 2: 1},
    lost=1,
    abandoned=2,
    bytes_in={1: 100, 2: 200},
    bytes_out={1: 0, 2: 100},
    accuracy={"global": {"device-000": 0.5}, "personal": {"device-000": 0.9, "device-001": 0.5, "device-002": 0.7}},
    refused={"malformed": 2},
    doubled={"device-002": "two agents have this name"},
    quarantined=("device-001",),
    waits=("2 of 3 devices are here, 1 more needed",),
    stories=STORIES,
    state_sha256="ab" * 32,
)


def test_a_fault_that_never_happened_fails_whatever_is_expected() -> None:
    report = msgspec.structs.replace(REPORT, missed=("cut at = 90: the run was over before",))
    assert failures(report, Expectations()) == (
        "faults: cut at = 90: the run was over before: nothing was put to the test",
    )
    assert failures(REPORT, Expectations()) == ()


@pytest.mark.parametrize(
    "holds",
    [
        {},
        {"status": "done", "rounds": 2},
        {"lost": 1, "abandoned": 2},
        {"bytes_per_round": 200, "seconds_per_round": 2.0, "longest_round": 3.0},
        {"mean": 0.7, "worst_decile": 0.5},
        {"reported": 1, "counted": {"device-000": 2, "device-001": 1}},
        {"counted": {"device-00[01]": 1}, "uncounted": ["device-002"]},
        {
            "told": [
                "not charging",
                "1 more needed",
                "device-002: two agents",
                "device-001:",
                "malformed",
                "device-002: *agents",
            ]
        },
        {"refused": {"malformed": 2}, "doubled": ["device-002"], "quarantined": ["device-00*"]},
    ],
)
def test_what_came_as_expected_is_no_failure(holds: dict[str, object]) -> None:
    assert failures(REPORT, msgspec.convert(holds, Expectations)) == ()


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"status": "failed"}, "status: expected failed, found done; it waited last: 2 of 3 devices"),
        ({"rounds": 3}, "rounds: expected at least 3 that trained, found 2"),
        ({"lost": 0}, "lost: expected at most 0, found 1\n  device-002:"),
        ({"abandoned": 1}, "abandoned: expected at most 1, found 2"),
        ({"bytes_per_round": 199}, "bytes_per_round: expected at most 199, found 200"),
        ({"seconds_per_round": 1.9}, "seconds_per_round: expected at most 1.9, found 2"),
        ({"longest_round": 2.9}, "longest_round: expected at most 2.9, found 3"),
        ({"mean": 0.71}, "mean: expected at least 0.71, found 0.700; the worst is device-001 with 0.500"),
        ({"worst_decile": 0.6}, "worst_decile: expected at least 0.6, found 0.500; the worst is device-001"),
        ({"reported": 2}, "reported: expected at least 2 reports in round 2, found 1\n  without device-001:"),
        ({"counted": {"device-001": 2}}, "count in at least 2 rounds, found 1\n"),
        ({"counted": {"device-009": 1}}, "counted: expected reports of device-009, found no such device"),
        ({"uncounted": ["device-009"]}, "uncounted: expected that device-009 takes part, found no such device"),
        ({"uncounted": ["device-00*"]}, "uncounted: expected that no report of device-000 counts, found 2"),
        ({"told": ["sunshine"]}, "told: expected that somebody says 'sunshine', found nobody"),
        ({"told": ["device-001: *two agents"]}, "told: expected that somebody says 'device-001: *two agents', found"),
        ({"refused": {"malformed": 3}}, "refused: expected at least 3 for 'malformed', found 2 (refused was: malf"),
        ({"refused": {"chunk": 1}}, "refused: expected at least 1 for 'chunk', found 0"),
        ({"doubled": ["device-001"]}, "doubled: expected device-001, found device-002"),
        ({"quarantined": ["device-002"]}, "quarantined: expected device-002, found device-001"),
        ({"same_model": True}, "same_model: expected a run without the faults"),
    ],
)
def test_what_came_otherwise_is_told_with_what_was_found(expected: dict[str, object], says: str) -> None:
    found = failures(REPORT, msgspec.convert(expected, Expectations))
    assert says in found[0]
    assert all(each.startswith(f"{next(iter(expected))}: expected ") for each in found)


def test_a_failure_shows_the_story_of_the_device_concerned() -> None:
    (found,) = failures(REPORT, Expectations(counted={"device-001": 2}))
    assert found.endswith(
        "\n        0.5 s  task of round 1"
        "\n        0.9 s  report of round 1"
        "\n        1.0 s  accepted of round 1"
        "\n        1.2 s  power cut of round 2"
    )
    (found,) = failures(REPORT, Expectations(uncounted=("device-001",)))
    assert "power cut" in found


def test_a_report_counts_even_if_its_device_never_heard_of_that() -> None:
    died = msgspec.structs.replace(REPORT, counted={"device-000": 2, "device-001": 1, "device-002": 1})
    assert failures(died, Expectations(counted={"device-002": 1})) == ()
    (found,) = failures(died, Expectations(uncounted=("device-002",)))
    assert "no report of device-002 counts, found 1" in found


def test_the_last_round_which_only_evaluates_is_no_round_of_training() -> None:
    (found,) = failures(msgspec.structs.replace(REPORT, rounds=3), Expectations(rounds=3))
    assert found == "rounds: expected at least 3 that trained, found 2"


def test_of_a_long_story_the_end_is_shown() -> None:
    long = msgspec.structs.replace(REPORT, stories={"d": tuple(Told(float(i), "task", i) for i in range(1, 21))})
    shown = story(long, "d").splitlines()
    assert len(shown) == LINES + 2
    assert shown[1].strip() == f"... {20 - LINES} lines before"
    assert shown[-1].endswith("20.0 s  task of round 20")
    assert story(long, "nobody") == ""


def test_nothing_evaluated_is_a_failure_and_no_error() -> None:
    bare = msgspec.structs.replace(REPORT, accuracy={})
    (found,) = failures(bare, Expectations(mean=0.0))
    assert "found no device that was evaluated" in found


def test_every_failure_is_told_at_once() -> None:
    expect = Expectations(status="failed", rounds=9, lost=0, mean=1.0, told=("sunshine", "rain"))
    assert [each.partition(":")[0] for each in failures(REPORT, expect)] == [
        "status",
        "rounds",
        "lost",
        "mean",
        "told",
        "told",
    ]


def test_the_same_model_is_that_of_the_run_without_faults_bit_for_bit() -> None:
    expect = Expectations(same_model=True)
    assert failures(REPORT, expect, faultless=REPORT) == ()
    other = msgspec.structs.replace(REPORT, state_sha256="cd" * 32)
    assert "found another one (abab" in failures(REPORT, expect, faultless=other)[0]
    none = msgspec.structs.replace(REPORT, state_sha256="")
    assert failures(none, expect, faultless=none) != ()


def test_no_number_is_no_good_number() -> None:
    broken = msgspec.structs.replace(REPORT, seconds={1: float("nan")})
    assert failures(broken, Expectations(longest_round=5.0)) != ()
