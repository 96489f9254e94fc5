"""What an emulation says of itself, without emulating anything: pure functions and their limits."""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from coordinator.journal import Result, RoundCost
from coordinator.status import RunStatus
from coordinator.without import Without
from device_agent.session import (
    Close,
    Connected,
    Received,
    SayHello,
    SendReports,
    StopWork,
    TaskId,
    Work,
    Worked,
)
from edgepfl.bus import Disconnected
from edgepfl.errors import BusError, ConfigError
from edgepfl.wire import BlobRef, Cancel, Member, Task
from simulators.emulation import command
from simulators.emulation.chronicle import LINES, Chronicle
from simulators.emulation.emulation import broker_of, fleet_on
from simulators.emulation.inflicting import meant
from simulators.emulation.junit import write_junit
from simulators.emulation.outcome import Fleetwide, Journalled, explained, lost, together
from simulators.emulation.overlay import scenario_from
from simulators.emulation.page import page
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Fault, Scenario
from simulators.emulation.shards import Part, Shard, pieces, share_of
from simulators.emulation.sightings import Sightings
from simulators.emulation.virtually import incidents
from simulators.emulation.words import table
from simulators.emulation.world import FLEET, World
from simulators.profiles import DAY

RUN = "run-1"
NAMES = tuple(f"device-{number:03}" for number in range(12))


def cost(abandoned: int = 0, **without: Any) -> RoundCost:  # noqa: ANN401  the fields of a record
    return RoundCost(10, 20, 1.0, abandoned, Without(**without))


def result(device: str, round_: int) -> Result:
    return Result(round_, device, 5, 5, {}, {}, "")


def test_a_report_is_lost_only_if_nobody_says_what_became_of_it() -> None:
    tasks = {name: (name, TaskId(RUN, 1, 0)) for name in ("ant", "bee", "cow", "dog", "elk", "fox")}
    journalled = Journalled(
        (result("ant", 1),),
        {1: cost(refused={"bee": "NaN"}, released=("cow",), lost=("dog",))},
    )
    fleet = Fleetwide(frozenset(tasks.values()), frozenset({tasks["elk"]}), ("fox",))
    assert lost(fleet, journalled, RUN) == 2  # the dog's vanished, and the fox does not know
    assert lost(fleet, journalled, "another run") == 1


def test_reports_of_abandoned_attempts_and_of_open_rounds_are_not_lost() -> None:
    sent = frozenset({("ant", TaskId(RUN, 1, 0)), ("ant", TaskId(RUN, 1, 1)), ("ant", TaskId(RUN, 2, 0))})
    assert lost(Fleetwide(sent), Journalled((result("ant", 1),), {1: cost(1)}), RUN) == 0
    assert lost(Fleetwide(sent), Journalled((), {1: cost(1)}), RUN) == 1


def test_what_was_cancelled_in_an_abandoned_attempt_may_be_lost_in_the_next() -> None:
    before, after = ("ant", TaskId(RUN, 1, 0)), ("ant", TaskId(RUN, 1, 1))
    fleet = Fleetwide(frozenset({before, after}), frozenset({before}))
    assert lost(fleet, Journalled((), {1: cost(1)}), RUN) == 1


def test_parts_of_shards_survive_their_way() -> None:
    fleet = Fleetwide(
        frozenset((name, TaskId(RUN, 1, 0)) for name in NAMES),
        frozenset({(NAMES[0], TaskId(RUN, 2, 0))}),
        (NAMES[1],),
        {f"{name}-{number}": (Told(1.0, "task", 1),) for name in NAMES for number in range(20)}
        | {name: (Told(2.0, "report", 1),) for name in NAMES},
        joules=dict.fromkeys(NAMES, 2.0),
        happened=frozenset({0, 3}),
    )
    sent = [msgspec.msgpack.encode(part) for part in pieces(2, fleet, 3.0)]
    assert len(sent) == 3
    assert max(map(len, sent)) < 1 << 19
    parts = [msgspec.msgpack.decode(data, type=Part) for data in sent]
    found = together(*(share_of(part, RUN) for part in parts))
    assert found.happened == fleet.happened
    assert together(found, Fleetwide(happened=frozenset({1}))).happened == {0, 1, 3}
    assert (found.sent, found.cancelled, found.pending) == (fleet.sent, fleet.cancelled, fleet.pending)
    assert (found.stories, found.joules) == (dict(sorted(fleet.stories.items())), fleet.joules)


def test_every_device_is_in_one_shard() -> None:
    dealt = [Shard(number, 5).own(NAMES) for number in range(1, 6)]
    assert sum(dealt, ()) == NAMES
    assert {len(each) for each in dealt} == {2, 3}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3"])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is no part"):
        Shard.parse(text)


def test_faults_find_their_devices() -> None:
    assert meant(Fault(kind="cut", devices=("device-01*", "device-003")), NAMES, 1, 0) == (
        "device-003",
        "device-010",
        "device-011",
    )
    drawn = meant(Fault(kind="cut", devices=4), NAMES, 1, 0)
    assert len(set(drawn)) == 4
    assert drawn == meant(Fault(kind="cut", devices=4), NAMES, 1, 0)
    assert len({meant(Fault(kind="cut", devices=4), NAMES, 1, number) for number in range(8)}) > 1
    with pytest.raises(ConfigError, match="no device is called 'pi-\\*'"):
        meant(Fault(kind="cut", devices=("pi-*",)), NAMES, 1, 0)


def task(number: int, attempt: int = 0) -> Task:
    blob = BlobRef("0" * 64, 1, b"x")
    return Task(
        run=RUN,
        round=number,
        attempt=attempt,
        cohort=(Member("ant", -1),),
        bundle=blob,
        download=blob,
        hyper={},
        steps=1,
        seed=1,
        evaluate=False,
        tune_steps=0,
        final=False,
        deadline=10.0,
        heartbeat=1.0,
    )


def chronicle() -> tuple[Chronicle, SimpleNamespace]:
    clock = SimpleNamespace(now=100.0)
    return Chronicle(clock=lambda: clock.now), clock


def test_a_story_is_told_from_what_the_agent_does() -> None:
    told, clock = chronicle()
    this = TaskId(RUN, 1, 0)
    told.hear("ant", Connected(), (SayHello(None), SendReports()))
    clock.now += 5
    told.begin()
    clock.now += 1
    told.hear("ant", Received(task(1), 0.0), (Work(task(1)),))
    told.hear("ant", Disconnected("gone"), ())
    told.hear("ant", Worked(this), (SendReports(),))
    assert told.sent == set()  # it has no connection
    told.hear("ant", Connected(), (SayHello(this), SendReports()))
    assert told.sent == {("ant", this)}
    told.hear("ant", Received(task(2), 0.0), (Close(this, accepted=True), StopWork(this)))
    lines = [(each.at, each.what, each.round) for each in told.story("ant")]
    assert lines == [
        (-5.0, "connected", 0),
        (1.0, "task", 1),
        (1.0, "disconnected", 0),
        (1.0, "report", 1),
        (1.0, "connected", 0),
        (1.0, "accepted", 1),
        (1.0, "stopped", 1),
    ]


def test_a_report_that_was_not_sent_dies_with_the_power() -> None:
    told, _ = chronicle()
    told.hear("ant", Worked(TaskId(RUN, 1, 0)), (SendReports(),))
    told.lost_power("ant")
    told.hear("ant", Connected(), (SendReports(),))
    assert told.sent == set()


def test_what_is_cancelled_is_no_loss() -> None:
    told, _ = chronicle()
    this = TaskId(RUN, 1, 0)
    told.hear("ant", Worked(this), ())
    told.hear("ant", Received(Cancel(RUN, 1, 1, "of another attempt"), 0.0), ())
    assert told.cancelled == set()
    told.hear("ant", Received(Cancel(RUN, 1, 0, "it is over"), 0.0), (Close(this, accepted=False),))
    assert told.cancelled == {("ant", this)}
    assert [each.what for each in told.story("ant")] == ["report", "cancelled"]


def test_a_long_story_keeps_its_end() -> None:
    told, _ = chronicle()
    for number in range(LINES + 5):
        told.tell("ant", "task", number)
    assert len(told.story("ant")) == LINES
    assert told.story("ant")[-1].round == LINES + 4


def status(**fields: Any) -> RunStatus:  # noqa: ANN401  likewise
    usual: dict[str, Any] = {
        "run": RUN,
        "status": "running",
        "why": "",
        "round": 0,
        "rounds": 3,
        "phase": "",
        "waiting": "",
        "here": (),
        "metrics": {},
        "state_sha256": "",
    }
    return RunStatus(**(usual | fields))


def test_refusals_add_up_over_restarts() -> None:
    seen = Sightings()
    for count in (1, 3, 3, 1, 2):  # it was started again before the fourth
        seen.see(status(refused={"chunk": count}, waiting=f"for {count}"))
    assert seen.refused == {"chunk": 5}
    assert seen.waits == ("for 1", "for 3", "for 2")


def test_a_failed_run_had_one_attempt_more_than_was_begun_anew() -> None:
    seen = Sightings()
    seen.see(status(attempt=1))
    assert seen.abandoned == 1
    seen.see(status(status="failed"))
    assert seen.abandoned == 2


def test_the_coordinators_reasons_stand_in_the_stories() -> None:
    stories = {"ant": (Told(1.0, "refused", 1), Told(2.0, "refused", 2)), "bee": (Told(1.0, "accepted", 1),)}
    found = explained(stories, {1: cost(refused={"ant": "it is NaN"}), 2: cost()})
    assert [told.detail for told in found["ant"]] == ["it is NaN", ""]
    assert found["bee"] is stories["bee"]


REPORT = EmulationReport(
    "<a & b>",
    1,
    "real",
    "mosquitto",
    "ditto",
    "mlp",
    2,
    40,
    RUN,
    "done",
    rounds=2,
    seconds={1: 0.5, 2: 1.5},
    reports={1: 2, 2: 2},
    bytes_in={1: 100, 2: 300},
    bytes_out={1: 0, 2: 0},
    accuracy={"personal": {"ant": 0.5, "bee": 1.0}},
    refused={"report": 1},
    doubled={"ant": "twice"},
    quarantined=("bee",),
    waits=("for <ant>",),
    stories={"ant": (Told(1.0, "refused", 1, "<NaN>"),)},
)


def test_the_table_and_the_page_say_what_came_of_it() -> None:
    text = table(REPORT)
    for figure in ("1.000", "200 B", "0.750, worst decile 0.500", "bee", "ant"):
        assert figure in text
    document = page(REPORT)
    assert "<title>edgepfl: &lt;a &amp; b&gt;</title>" in document
    assert "<NaN>" not in document
    assert document.count("<svg") == 4
    ET.fromstring(document.partition("\n")[2].replace('<meta charset="utf-8">', ""))  # noqa: S314  our own page


def test_junit_has_one_test_that_fails_with_all_that_is_wrong(tmp_path: Path) -> None:
    for wrong in ((), ("first\nmore", "second")):
        write_junit(REPORT, wrong, 2.0, tmp_path / "junit.xml")
        suite = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314  our own file
        assert suite.get("failures") == str(int(bool(wrong)))
        found = suite.find("testcase/failure")
        assert (found is not None) == bool(wrong)
        if found is not None:
            assert found.text == "first\nmore\nsecond"


def parsed(*given: str) -> argparse.Namespace:
    return command._parser().parse_args(list(given))


def test_a_command_line_is_a_scenario() -> None:
    found = scenario_from(
        parsed(
            *("--agents", "50", "--sample", "0.1", "--rounds", "7", "--steps", "2", "--algorithm", "ditto"),
            *("--set", "lam=0.5", "--model", "cnn1d", "--profiles", "pi-4=0.5,host", "--run", "lease=5"),
            *("--churn", "reboots=2", "--seed", "9", "--codec", "int8", "--partition", "iid", "--batch", "8"),
        )
    )
    assert (found.fleet.agents, found.run.goal, found.run.minimum) == (50, 5, 5)
    assert (found.run.rounds, found.run.steps, found.run.lease, found.run.codec) == (7, 2, 5.0, "int8")
    assert (found.seed, found.run.seed) == (9, 9)
    assert found.work.settings == {"lam": 0.5}
    assert found.fleet.profiles == {"pi-4": 0.5, "host": 1.0}
    assert found.fleet.churn == {"reboots": 2}
    assert (found.work.model, found.work.batch, found.work.partition) == ("cnn1d", 8, "iid")


def test_options_go_over_a_scenario_that_comes_along() -> None:
    found = scenario_from(parsed("dead-device", "--rounds", "9"))
    assert found.run.rounds == 9
    assert found.faults[0].kind == "kill"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--sample", "0"], "--sample"),
        (["--profiles", "pi-4=many"], "--profiles"),
        (["--run", "lease"], "--run"),
        (["--agents", "0"], "--agents"),
        (["--algorithm", "none"], "--algorithm"),
        (["no-such-scenario"], "no-such-scenario"),
    ],
)
def test_what_cannot_be_is_refused_by_its_option(given: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        scenario_from(parsed(*given))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--shard", "1/2"], "meet at a broker"),
        (["--speedup", "0.5"], "no speedup"),
        (["--speedup", "inf"], "no speedup"),
        (["--json", "/"], "it is a directory"),
        (["--keep", __file__], "cannot be made"),
        (["--set", "lr=nan"], "must be finite"),
        (["--json", "/no/such/directory/out.json"], "does not exist"),
        (["--shard", "1/2", "--broker", "mqtt://localhost", "--check"], "one process"),
    ],
)
def test_options_that_contradict_each_other(given: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        command.main(given)


def test_a_broker_that_does_not_answer_is_told_at_once() -> None:
    with socket.socket() as nobody:  # it has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"mqtt://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(BusError, match="no broker answers"):
            broker_of(url)


def test_where_others_may_be_a_fleet_has_a_name_of_its_own() -> None:
    assert fleet_on("auto") == fleet_on("mosquitto") == FLEET
    assert fleet_on("mqtt://10.0.0.5") != fleet_on("mqtt://10.0.0.5") != FLEET


@pytest.mark.parametrize(
    ("fault", "unknown"),
    [
        ({"kind": "kill", "devices": ["ant"], "through": 2}, "'through' of a fault"),
        ({"kind": "silence", "devices": ["ant"], "until": 5.0}, "'until' of silence"),
        ({"kind": "quota", "devices": ["ant"], "values": {"mib": 1.0}}, "a quota above mib = 0"),
    ],
)
def test_virtual_time_says_what_it_does_not_know(fault: dict[str, Any], unknown: str) -> None:
    with pytest.raises(ConfigError, match=unknown):
        incidents(Scenario(faults=(msgspec.convert(fault, Fault),)), ("ant",))


def test_what_lasts_for_good_lasts_in_virtual_time_too() -> None:
    ant = ("ant",)
    faults = (
        Fault(kind="kill", devices=ant),
        Fault(kind="kill", devices=ant, until=3.0),
        Fault(kind="cut", devices=ant),
    )
    assert [each.seconds for each in incidents(Scenario(faults=faults), ("ant",))] == [DAY, 3.0, 0.0]


class Switch:
    """What a world knows of an agent: whether it runs."""

    running = True

    def start(self) -> None:
        self.running = True

    async def kill(self) -> None:
        self.running = False


def test_power_comes_back_when_all_that_took_it_are_over() -> None:
    agent = Switch()
    world = World.__new__(World)  # without a broker
    vars(world).update(fleet={"ant": agent}, chronicle=Chronicle(), _without={}, _ended=set())

    async def scenario() -> None:
        await world.power_off("ant")
        await world.power_off("ant", "battery")
        await world.power_on("ant", "life")
        assert not agent.running
        await world.power_on("ant", "battery")
        assert not agent.running
        await world.power_on("ant")
        assert agent.running

    asyncio.run(scenario())
