"""Scenario files: what they say, what they need not say, and a clear error for what they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.config import RunConfig
from edgepfl.__main__ import main
from edgepfl.errors import ConfigError
from edgepfl.validation import in_file
from simulators.emulation.scenario import Expectations, Fault, Scenario, without_faults
from simulators.emulation.scenario_file import find, names, scenario_of

EXAMPLE = Path(__file__).parents[3] / "docs/examples/day.toml"
WHOLE = """
name = "Slow, and Far Away"
about = "One link is slow."
seed = 7
broker = "mosquitto"

[fleet]
agents = 6
trace = "days.csv"
profile_file = "mine.toml"
keepalive = 5
profiles = {pi-4 = 0.5, phone-mid = 0.5}

[work]
algorithm = "ditto"
settings = {lam = 0.5}

[run]
rounds = 2
over = 1.5
hyper = {lr = 0.1}

[[faults]]
kind = "link"
devices = ["device-00*"]
after = 1
values = {rate = 100000, delay = 0.05}

[[faults]]
kind = "broker"
during = 2

[expect]
rounds = 3
counted = {device-001 = 2}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "slow.toml"
    path.write_text(text, encoding="utf-8")
    return path


def made(table: dict[str, Any]) -> Scenario:
    return scenario_of(table, in_file("a.toml"), folder=Path("/somewhere"))


def test_everything_can_be_said(tmp_path: Path) -> None:
    found = find(written(tmp_path, WHOLE))
    assert (found.name, found.seed, found.broker) == ("Slow, and Far Away", 7, "mosquitto")
    assert (found.fleet.agents, found.fleet.keepalive) == (6, 5)
    assert found.fleet.trace == str(tmp_path / "days.csv")
    assert found.fleet.profile_file == str(tmp_path / "mine.toml")
    assert found.work.settings == {"lam": 0.5}
    assert found.faults == (
        Fault(kind="link", devices=("device-00*",), after=1, values={"rate": 100000, "delay": 0.05}),
        Fault(kind="broker", during=2),
    )
    assert found.expect == Expectations(rounds=3, counted={"device-001": 2})
    assert (found.run.goal, found.run.minimum, found.run.rounds, found.run.hyper) == (4, 4, 2, {"lr": 0.1})
    assert (found.run.name, found.run.seed) == ("slow--and-far-away", 7)


def test_a_path_is_relative_to_its_folder(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    assert find("slow.toml", tmp_path) == find(tmp_path / "slow.toml")


@pytest.mark.parametrize(
    ("table", "goal", "minimum"),
    [
        ({}, 20, 20),
        ({"fleet": {"agents": 5}}, 5, 5),
        ({"fleet": {"agents": 5}, "run": {"goal": 3}}, 3, 3),
        ({"fleet": {"agents": 5}, "run": {"minimum": 3}}, 5, 3),
        ({"fleet": {"agents": 5000}}, 2000, 2000),
        ({"fleet": {"agents": 3000}, "run": {"over": 1.5}}, 1333, 1333),
        ({"fleet": {"agents": 5}, "run": {"buffer": 2}}, 5, 2),
    ],
)
def test_every_device_takes_part_unless_told_otherwise(table: dict[str, Any], goal: int, minimum: int) -> None:
    found = made(table).run
    assert (found.goal, found.minimum) == (goal, minimum)


def test_what_a_run_does_not_say_suits_an_emulation() -> None:
    found = made({"seed": 3, "fleet": {"agents": 4}})
    assert found.run == RunConfig(name="emulation", rounds=3, steps=5, goal=4, minimum=4, evaluate_every=0, seed=3)
    assert made({"seed": 3, "fleet": {"agents": 4}, "run": {"seed": 9, "name": "own"}}).run.seed == 9


BAD: dict[str, tuple[str, str, str, str]] = {
    "an unknown table": ("[fleet]", "[flete]", "flete", "Did you mean 'fleet'?"),
    "an unknown key": ("agents = 6", "agent = 6", "fleet.agent", "Did you mean 'agents'?"),
    "an unknown key of a fault": ("during = 2", "durng = 2", "faults[1].durng", "Did you mean 'during'?"),
    "an unknown setting of the run": ("rounds = 2", "rouns = 2", "run.rouns", "Did you mean 'rounds'?"),
    "no agent": ("agents = 6", "agents = 0", "fleet.agents", "0 is not a whole number from 1 to 100000"),
    "agents that are none": ("agents = 6", 'agents = "six"', "fleet.agents", "'six' is not a whole number"),
    "a share that is none": ("phone-mid = 0.5", "phone-mid = 0", "fleet.profiles.phone-mid", "a number above 0"),
    "no kind": ('kind = "broker"', "", "faults[1]", "kind is missing"),
    "an unknown kind": ('kind = "broker"', 'kind = "borker"', "faults[1].kind", "Did you mean 'broker'?"),
    "a broker's fault with devices": ("during = 2", "devices = 1", "faults[1]", "broker happens to no device"),
    "two times": ("after = 1", "after = 1\nat = 3.0", "faults[0]", "at and after"),
    "a value of another kind": ("delay = 0.05", "mib = 5", "faults[0]", "values of link are rate, delay, loss"),
    "a value that is none": ("delay = 0.05", 'delay = "long"', "faults[0]", "delay = 'long' is no number"),
    "a value out of range": ("delay = 0.05", "loss = 1.5", "faults[0]", "loss = 1.5 is out of range: 0 to 1"),
    "an unknown algorithm": ('"ditto"', '"dito"', "work.algorithm", "Did you mean 'ditto'?"),
    "a goal above the fleet": ("over = 1.5", "goal = 9\nminimum = 1", "", "goal (9) is above the fleet's agents (6)"),
    "a minimum above the goal": ("over = 1.5", "minimum = 9", "run", "minimum (9) is above goal (6)"),
    "an expectation that cannot be": ("rounds = 3", "mean = 60", "expect.mean", "60 is not a number from 0 to 1"),
    "a status that is none": ("rounds = 3", 'status = "fine"', "expect.status", "'done', 'failed', 'stopped'"),
    "a seed that is none": ("seed = 7", "seed = 99999999999999999999", "seed", "too large"),
    "no TOML": ("seed = 7", "seed =", "", "not TOML"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_told_with_file_key_and_cure(tmp_path: Path, case: str) -> None:
    old, new, key, says = BAD[case]
    assert WHOLE.count(old) == 1
    path = written(tmp_path, WHOLE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        find(path)
    assert caught.value.where == (f"{path}, {key}" if key else str(path))
    assert says in str(caught.value)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no device": ({"kind": "kill"}, "kill needs devices"),
    "more devices than there are": ({"kind": "kill", "devices": 21}, "to 21 devices, and there are 20"),
    "no value": ({"kind": "quota", "devices": 1}, "quota needs values: mib"),
    "a value where none is": ({"kind": "kill", "devices": 1, "values": {"mib": 1}}, "kill has no values"),
    "no time": ({"kind": "clock", "devices": 1, "values": {"stuck": "yesterday"}}, "stuck = 'yesterday' is no time"),
    "late and never": ({"kind": "late", "devices": 1}, "late takes at or after"),
    "during no round": ({"kind": "kill", "devices": 1, "during": 5}, "kill never happens: during = 5"),
    "after the end": ({"kind": "broker", "after": 4}, "broker never happens: after = 4, and the last such round is 3"),
    "over before it begins": ({"kind": "nan", "devices": 1, "after": 2, "through": 2}, "begins after it is over"),
    "over before its round": ({"kind": "nan", "devices": 1, "during": 2, "through": 1}, "begins after it is over"),
    "late and at work": ({"kind": "late", "devices": 1, "during": 1}, "late takes at or after"),
    "a negative rate": ({"kind": "link", "devices": 1, "values": {"rate": -1}}, "rate = -1 is out of range"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_that_cannot_be_is_refused(case: str) -> None:
    table, says = FAULTS[case]
    with pytest.raises(ConfigError) as caught:
        made({"faults": [table]})
    assert says in str(caught.value)


def test_a_clock_may_be_wrong_in_two_ways() -> None:
    for values in ({"stuck": "1970-01-01T00:00:00"}, {"skew": -86400.0}):
        assert made({"faults": [{"kind": "clock", "devices": 1, "values": values}]}).faults[0].values == values


def test_an_unknown_name_is_answered_with_those_that_come_along() -> None:
    known = names()[0]
    with pytest.raises(ConfigError, match=f"Did you mean '{known}'") as caught:
        find(known[:-1])
    assert all(name in caught.value.remedy for name in names())


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        find(tmp_path / "none.toml")


def test_the_example_of_the_documents_is_a_day_of_a_thousand_phones() -> None:
    found = find(EXAMPLE)
    assert (found.time, found.fleet.agents, found.run.selected) == ("virtual", 1000, 65)
    assert found.run.conditions is not None
    assert found.run.conditions.charging


def test_without_faults_all_else_is_the_same(tmp_path: Path) -> None:
    found = find(written(tmp_path, WHOLE))
    bare = without_faults(found)
    assert (bare.faults, bare.expect) == ((), Expectations())
    assert msgspec.structs.replace(bare, faults=found.faults, expect=found.expect) == found


VALUES = st.recursive(
    st.booleans() | st.integers(-9, 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _keys(record: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(record)]


TABLES: dict[str, type[msgspec.Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Scenario)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
WILD = st.fixed_dictionaries(
    {},
    optional={
        **{key: VALUES for key in _keys(Scenario) if key not in TABLES},
        **{
            name: VALUES | st.dictionaries(st.sampled_from(_keys(record)) | st.text(max_size=5), VALUES, max_size=2)
            for name, record in TABLES.items()
        },
    },
)


def _outcome(table: dict[str, Any]) -> Scenario | ConfigError:
    try:
        return made(table)
    except ConfigError as error:
        return error


@given(WILD)
def test_whatever_a_file_says_is_a_scenario_or_an_error_that_names_its_key(table: dict[str, Any]) -> None:
    found = _outcome(table)
    if isinstance(found, ConfigError):
        assert found.where.startswith("a.toml")
        key = found.where.removeprefix("a.toml").removeprefix(", ")
        assert not key or key.split(".")[0].split("[")[0] in table


@given(st.sampled_from(sorted(TABLES)), st.text(min_size=1, max_size=8))
def test_a_key_that_does_not_exist_is_named(name: str, key: str) -> None:
    if key not in _keys(TABLES[name]):
        found = _outcome({name: {key: 1}})
        assert isinstance(found, ConfigError)
        assert found.where == f"a.toml, {name}.{key}"
        assert "Allowed here" in found.remedy


def test_the_command_lists_what_comes_along(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--list"]) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line and not line.startswith(" ")] == list(names())
    assert "loses its power" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nta",), "there is no scenario 'nta'. Did you mean 'nat'?"),
        (("--agents", "0"), "--agents: 0 is not a whole number from 1 to 100000"),
        (("nat", "--rounds", "0"), "--rounds: 0 is not a whole number from 1"),
    ],
)
def test_the_command_refuses_what_cannot_be(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *words]) == 2
    assert says in capsys.readouterr().err
