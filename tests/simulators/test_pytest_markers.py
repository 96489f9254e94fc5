"""What the plugin's markers say becomes a scenario, or an error that a newcomer can act on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.config import RunConfig
from edgepfl.errors import ConfigError
from simulators.emulation.scenario import Fault, FleetTable, Scenario, WorkTable
from simulators.emulation.scenario_file import scenario_of
from simulators.pytest_plugin.markers import (
    ARGUMENTS,
    KINDS,
    board_of,
    changed,
    faults_of,
    scenario_name,
    setup_of,
    with_seed,
)


def mark(name: str, *positional: object, **named: object) -> pytest.Mark:
    found: pytest.Mark = getattr(pytest.mark, name).with_args(*positional, **named).mark
    return found


def test_arguments_land_where_a_scenario_file_has_them() -> None:
    setup = setup_of(
        [mark("fleet", agents=8, profiles={"pi-4": 0.5, "pi-5": 0.5}, algorithm="ditto", rounds=4, seed=7, lease=9.0)],
        name="mine",
    )
    table = {
        "seed": 7,
        "fleet": {"agents": 8, "profiles": {"pi-4": 0.5, "pi-5": 0.5}},
        "work": {"algorithm": "ditto"},
        "run": {"rounds": 4, "lease": 9.0},
    }
    assert setup.scenario == scenario_of(table, str, folder=Path(), name="mine")
    assert setup.own == {}


def test_every_setting_of_fleet_work_and_run_is_an_argument_once() -> None:
    fields = [each.name for kind in (FleetTable, WorkTable, RunConfig) for each in msgspec.structs.fields(kind)]
    assert sorted([*fields, "time"]) == sorted([*ARGUMENTS, "name"])
    assert len(set(fields)) == len(fields)


@given(st.integers(1, 50))
def test_every_device_is_in_every_round_and_with_faults_half_of_them_are_enough(agents: int) -> None:
    plain = setup_of([mark("fleet", agents=agents)]).scenario.run
    faulty = setup_of([mark("fleet", agents=agents), mark("faults", "kill", devices=1)]).scenario.run
    assert (plain.goal, plain.minimum) == (agents, agents)
    assert (faulty.goal, faulty.minimum) == (agents, max(1, agents // 2))
    assert faulty.lease < plain.lease


def test_what_is_said_is_kept_in_spite_of_faults() -> None:
    marks = [mark("fleet", agents=6, minimum=5, lease=33.0), mark("faults", "kill", devices=1)]
    assert (setup_of(marks).scenario.run.minimum, setup_of(marks).scenario.run.lease) == (5, 33.0)


def test_inner_markers_win_and_faults_add_up() -> None:
    outer = [mark("fleet", agents=6, rounds=9), mark("faults", "broker", at=1.0)]
    inner = [
        mark("fleet", rounds=2),
        mark("faults", "link", devices=["device-001"], rate=1e5),
        mark("faults", "nan", devices=2),
    ]
    scenario = setup_of([*outer, *inner]).scenario
    assert (scenario.fleet.agents, scenario.run.rounds) == (6, 2)
    assert [fault.kind for fault in scenario.faults] == ["broker", "link", "nan"]
    assert scenario.faults[1] == Fault(kind="link", devices=("device-001",), values={"rate": 1e5})


def test_a_scenario_s_own_numbers_stay_where_the_marker_says_nothing() -> None:
    base = scenario_of({"fleet": {"agents": 9}, "run": {"minimum": 4, "rounds": 7}}, str, folder=Path())
    scenario = setup_of([mark("fleet", algorithm="ditto")], base).scenario
    assert (scenario.fleet.agents, scenario.run.minimum, scenario.run.rounds) == (9, 4, 7)
    assert scenario.work.algorithm == "ditto"


def test_own_objects_stay_beside_the_scenario_and_a_name_takes_their_place() -> None:
    def net() -> None: ...

    setup = setup_of([mark("fleet", model=net, data={"a": (1, 2)})])
    assert setup.own == {"model": net, "data": {"a": (1, 2)}}
    assert setup.scenario.work == Scenario().work
    again = changed(setup, {"model": "mlp-9k"}, "fleet.train()")
    assert again.own == {"data": {"a": (1, 2)}}
    assert again.scenario.work.model == "mlp-9k"


def test_another_seed_is_the_run_s_too() -> None:
    setup = with_seed(setup_of([mark("fleet", seed=3)]), 8)
    assert (setup.scenario.seed, setup.scenario.run.seed) == (8, 8)


def test_a_fault_takes_every_field_of_its_record() -> None:
    found = faults_of(("link",), {"devices": 2, "after": 1, "through": 3, "rate": 1e5})
    assert found == (Fault(kind="link", devices=2, after=1, through=3, values={"rate": 1e5}),)
    with pytest.raises(ConfigError, match="It takes: devices, at, after, during, until, through, rate"):
        faults_of(("link",), {"throuh": 3})


def test_records_of_faults_are_taken_as_they_are() -> None:
    records = (Fault(kind="cut", devices=2, during=1), Fault(kind="coordinator", after=1))
    assert faults_of(records, {}) == records


WRONG = [
    (mark("fleet", agnets=3), "@pytest.mark.fleet(agnets=3)", "Did you mean 'agents'? It takes: seed, time, agents"),
    (mark("fleet", agents=0), "agents: 0 is not a whole number from 1", ""),
    (mark("fleet", 5), "it takes no positional argument (5)", "NAME=VALUE"),
    (mark("fleet", time="reel"), "time: 'reel' is not one of 'real', 'virtual'", "Did you mean 'real'?"),
    (mark("fleet", algorithm="dito"), "there is no algorithm 'dito'", "Did you mean 'ditto'?"),
    (
        mark("fleet", profiles={"pi-44": 1.0}),
        "profiles: there is no device profile 'pi-44'",
        "Name one of host, pi-zero-2",
    ),
    (mark("fleet", rounds="many"), "rounds: 'many' is not a whole number", ""),
    (mark("fleet", goal=2, minimum=5), "minimum (5) is above goal (2)", ""),
    (mark("fleet", trace=object()), "trace is a object", "Give a number"),
    (mark("faults", "kil", devices=1), "there is no fault 'kil'", "Did you mean 'kill'?"),
    (mark("faults"), "there is no fault ''", ", ".join(KINDS)),
    (mark("faults", "kill"), "kill needs devices", ""),
    (mark("faults", "kill", device=1), "a fault 'kill' has no argument 'device'", "Did you mean 'devices'?"),
    (mark("faults", "link", devices=1, rat=5), "a fault 'link' has no argument 'rat'", "Did you mean 'rate'?"),
    (mark("faults", "link", devices=1, rate="slow"), "rate = 'slow' is no number", ""),
    (mark("faults", "kill", devices=99), "kill is to happen to 99 devices, and there are 20", ""),
    (mark("faults", "kill", devices=1, at=1, during=2), "it has at and during", ""),
    (mark("faults", "kill", devices=1, until=-1), "until: -1 is not a number from 0", ""),
    (mark("faults", Fault(kind="broker"), at=3), "there is no fault", "give records of faults"),
]


@pytest.mark.parametrize(("wrong", "what", "remedy"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_a_wrong_argument_is_named_with_its_marker_and_what_would_do(
    wrong: pytest.Mark, what: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        setup_of([wrong])
    text = str(caught.value)
    assert text.startswith(f"@pytest.mark.{wrong.name}(")
    assert what in text
    assert remedy in text


def test_a_board_and_a_scenario_say_what_they_take() -> None:
    assert board_of(None) == {}
    assert board_of(mark("board", profile="pi-4", seed=2)) == {"profile": "pi-4", "seed": 2}
    with pytest.raises(ConfigError, match=r"there is no argument 'profil'\. Did you mean 'profile'"):
        board_of(mark("board", profil="pi-4"))
    with pytest.raises(ConfigError, match="profile=4 is no str"):
        board_of(mark("board", profile=4))
    assert scenario_name(mark("scenario", "nat")) == "nat"
    with pytest.raises(ConfigError, match="the name of a scenario that comes along, or the path"):
        scenario_name(mark("scenario"))
