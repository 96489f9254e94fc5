"""A run's conditions at the coordinator: who is told, who is chosen, what the status says, and who is not asked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from _levels import at_work, ended, present, two_levels
from _plans import bundle_of
from _scripted import Clock, Hand, config, coordinating, drained, finished, hands, play, told, until, watched

from coordinator.cli import _run_config, _run_parser
from coordinator.conditions import UNASKED, obstacle, obstacles
from coordinator.config import RunConfig
from coordinator.devices import Fleet, doubt, welcome
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.eligibility import Conditions, Readings, digest
from edgepfl.errors import ConfigError
from edgepfl.wire import Hello, RollCall, Task

ASKED = Conditions(charging=True, max_temperature=75.0)
OTHER = Conditions(charging=True)


def hello(name: str = "ant", judged: Conditions | None = ASKED, *unmet: str) -> Hello:
    """A device that speaks of these conditions."""
    plain = Hello(name, 1, ("onnx",), 5, 512, "test")
    return (
        plain if judged is None else msgspec.structs.replace(plain, judged=digest(judged), unmet=unmet or msgspec.UNSET)
    )


def test_what_stands_in_a_devices_way() -> None:
    assert obstacle(hello(), None) == ""
    assert obstacle(hello("ant", OTHER, "not charging"), None) == ""  # of a run that is over
    assert obstacle(hello(), ASKED) == ""
    assert obstacle(hello("ant", ASKED, "not charging", "temperature 81 C, at most 75"), ASKED) == (
        "not charging, temperature 81 C, at most 75"
    )
    assert obstacle(hello("ant", OTHER), ASKED) == UNASKED
    assert obstacle(hello("ant", None), ASKED) == UNASKED


def test_a_hub_is_asked_nothing_its_devices_are() -> None:
    assert obstacle(msgspec.structs.replace(hello("north", None), members=("ant", "bee")), ASKED) == ""


def test_only_who_is_here_is_told_of() -> None:
    fleet = Fleet()
    for each in (hello("cat", ASKED, "not charging"), hello("bee"), hello("ant", None), hello("dog", None)):
        fleet = welcome(fleet, each)
    assert obstacles(doubt(fleet, ("dog",)), ASKED) == {"ant": UNASKED, "cat": "not charging"}
    assert obstacles(fleet, None) == {}


async def asked_of(hand: Hand) -> Conditions | None:
    """What the next roll call asks."""
    return (await hand.next(RollCall)).conditions


def test_the_fleet_is_told_when_a_run_begins_and_ends_and_only_who_meets_it_is_chosen(
    small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2, conditions=ASKED), pack(small))
            for hand in (ant, bee):
                while await asked_of(hand) is None:
                    pass
            await until(service, run, lambda: service.status(run).unmet == {"ant": UNASKED, "bee": UNASKED})
            ant.say(hello("ant"))
            bee.say(hello("bee", ASKED, "not charging"))
            status = await watched(service, run, lambda status: status.unmet == {"bee": "not charging"})
            assert status.waiting.endswith("; not ready: bee (not charging)")
            bee.say(hello("bee"))
            task = await told([ant, bee])
            assert task.conditions == ASKED
            assert service.status(run).unmet == {}
            service.stop_run(run)
            assert (await finished(service, run)).status == "stopped"
            assert await asked_of(ant) is None

    play(scenario())


def test_a_device_that_loses_a_condition_is_not_waited_for(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=3, minimum=1, conditions=ASKED), pack(small))
            for hand in (ant, bee):
                hand.say(hello(hand.name))
            await until(service, run, lambda: len(service._active.round.present) == 2)
            bee.say(hello("bee", ASKED, "not charging"))
            await until(service, run, lambda: len(service._active.round.present) == 1)
            clock.now += 6
            service._look()
            assert [member.device for member in (await ant.next(Task)).cohort] == ["ant"]

    play(scenario())


def test_who_speaks_of_other_conditions_is_told_alone_and_not_in_a_circle(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as [ant, bee]:
            await drained(service, broker)
            run = service.start_run(config(goal=2, minimum=1, conditions=ASKED), pack(small))
            while await asked_of(ant) is None:
                pass
            await drained(service, broker)
            clock.now += 10
            ant.say(hello("ant", OTHER))  # it started just now, and heard only of an old run
            assert await asked_of(ant) == ASKED
            for _ in range(5):  # an agent that knows no conditions answers a roll call with the same again
                clock.now += 10
                ant.say(hello("ant", OTHER))
                await drained(service, broker)
            ant.say(hello("ant"))
            await until(service, run, lambda: "ant" in service._active.round.present)
            bee.say(hello("bee"))
            heard = [await ant.heard()]
            while not isinstance(heard[-1], Task):
                heard.append(await ant.heard())
            assert not [message for message in heard if isinstance(message, RollCall)]

    play(scenario())


def test_after_the_broker_was_away_everyone_hears_the_conditions_again(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1, conditions=ASKED), pack(small))
            while await asked_of(ant) is None:
                pass
            broker.stop()
            await until(service, run, lambda: not service._connected)
            broker.start()
            assert await asked_of(ant) == ASKED

    play(scenario())


def parsed(*words: str) -> RunConfig:
    """What the command line says."""
    return _run_config(_run_parser().parse_args(["start", "--config=c", "--bundle=b", *words]))


def test_the_command_line_gives_conditions_from_a_file_and_in_words(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text('charging = true\nmin_battery = 0.3\nwindows = ["22:00-06:00"]\non_lost = "give up"\n')
    assert parsed().conditions is None
    assert parsed("--require", "charging=false").conditions is None
    assert parsed("--conditions", str(file), "--require", "min_battery=0.6", "--require", "charging").conditions == (
        Conditions(charging=True, min_battery=0.6, windows=("22:00-06:00",), on_lost="give up")
    )
    saved = msgspec.json.encode(parsed("--require", "max_load=0.5"))
    assert msgspec.json.decode(saved, type=RunConfig).conditions == Conditions(max_load=0.5)


BAD = {
    "min_bat=1": "Did you mean min_battery?",
    "sunshine": "there is no condition 'sunshine'",
    "min_battery": "min_battery needs a value",
    "min_battery=60": "--require min_battery=60: '60' is not a number from 0 to 1",
    "charging=maybe": "'maybe' is not true or false",
    "windows=10-12": "'10-12' is not a text such as '22:00-06:00'",
    "on_lost=cry": "'cry' is not one of 'give up', 'pause'",
    "max_temperature=inf": "'inf' is not a number from 1 to 150",
}


@pytest.mark.parametrize("word", BAD)
def test_a_condition_that_cannot_be_is_refused_with_a_remedy(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed("--require", word)
    assert caught.value.where.startswith("--require")
    assert BAD[word] in str(caught.value)


def test_an_unknown_condition_in_a_file_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    file.write_text("chargin = true\n")
    with pytest.raises(ConfigError, match=r"night\.toml, chargin"):
        parsed("--conditions", str(file))


def test_the_devices_of_a_hub_are_asked_by_their_hub(tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of("fedavg")
        async with (
            two_levels(bundle, tmp_path, without=("north",)) as (world, service),
            at_work(
                world.hub("north", gather=0.3)  # seconds that it waits for bee
            ),
        ):
            await present(service, "north", "south", "fly", members=5)
            for name, one in world.agents.items():
                one.readings = Readings(powered=name != "bee", temperature=40.0)
            run = service.start_run(config(rounds=1, canary=0.0, conditions=ASKED), pack(bundle))
            result = await ended(service, run, world.agents)
        assert result.status == "done"
        assert result.results[1] == ("ant", "cat", "dog", "eel", "fly")
        assert world.agents["bee"].tasks == []

    play(scenario())
