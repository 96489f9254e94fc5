"""When the sensors are read, and a rest between two participations that outlives process and machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _bundles import ditto_bundle
from _hand import Hand, agent, hand, play, until

from device_agent.conditions_watch import Uptime, Watch
from device_agent.store import Store
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.eligibility import Conditions, Readings, unmet
from edgepfl.wire import Failed, Hello, Report, RollCall

RESTED = Conditions(min_interval=100.0)
BOOT, ANOTHER = 7, 8


class Machine:
    """A device's storage and its uptime."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uptime = Uptime(BOOT, 1000.0)
        self.store = Store(path)
        self.watch = self._watch()

    def _watch(self) -> Watch:
        return Watch(lambda: Readings(powered=True), self.store, 12, uptime=lambda: self.uptime)

    def restart(self) -> None:
        """The agent is started again."""
        self.store.close()
        self.store = Store(self.path)
        self.watch = self._watch()

    def take_part(self) -> None:
        """A report is stored, and with it when that was."""
        self.store.commit_pending("run", 1, 0, keep=b"keep", report=b"report", facts=self.watch.took_part())

    @property
    def rested(self) -> float | None:
        return self.watch.look(RESTED, 0.0).rested


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "store.db")
    yield found
    found.store.close()


def test_who_never_took_part_has_nothing_to_rest_from(machine: Machine) -> None:
    assert machine.rested is None
    assert unmet(RESTED, machine.watch.look(RESTED, 0.0)) == ()


def test_a_rest_goes_on_over_a_restart_of_the_agent(machine: Machine) -> None:
    machine.take_part()
    machine.uptime = Uptime(BOOT, 1030.0)
    machine.restart()
    assert machine.rested == 30.0
    assert unmet(RESTED, machine.watch.look(RESTED, 0.0)) == ("it took part 30 s ago, at least 100 s needed",)
    machine.uptime = Uptime(BOOT, 1100.0)
    assert unmet(RESTED, machine.watch.look(RESTED, 0.0)) == ()


def test_after_a_reboot_a_rest_counts_from_the_boot_and_is_never_too_short(machine: Machine) -> None:
    machine.take_part()
    machine.uptime = Uptime(ANOTHER, 5.0)  # it was off for who knows how long
    machine.restart()
    assert machine.rested == 5.0
    machine.uptime = Uptime(ANOTHER, 2000.0)  # a larger number than at the last participation
    assert machine.rested == 2000.0


def test_a_report_that_is_not_stored_was_no_participation(machine: Machine) -> None:
    machine.take_part()
    machine.uptime = Uptime(BOOT, 1050.0)
    machine.store.settle("run", 1, 2, 0)
    with pytest.raises(Exception, match="settled"):
        machine.take_part()
    assert machine.rested == 50.0


def test_the_sensors_are_read_only_while_something_is_asked(tmp_path: Path) -> None:
    reads = 0

    def sensors() -> Readings:
        nonlocal reads
        reads += 1
        return Readings()

    with Store(tmp_path / "store.db") as store:
        watch = Watch(sensors, store, 12, every=5.0)
        assert watch.look(None, 1.0) == Readings()
        assert (reads, watch.due(None)) == (0, ())
        assert watch.look(RESTED, 2.0).examples == 12
        assert (reads, watch.due(RESTED)) == (1, (7.0,))


def test_this_machine_knows_its_uptime() -> None:
    first = Uptime.now()
    later = Uptime.now()
    assert later.boot == first.boot
    assert later.since(first) >= 0


async def asked(other: Hand, conditions: Conditions | None) -> Hello:
    """What the device answers a roll call with these conditions."""
    await other.hear(Hello)
    other.say(RollCall(1, conditions))
    return await other.hear(Hello)


def test_an_agent_says_what_it_lacks_declines_and_rests_after_a_report(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hand(broker, tmp_path, ditto_bundle()) as other, agent(broker, tmp_path / "agent") as one:
            hello = await asked(other, Conditions(min_examples=11))
            assert hello.unmet == ("10 examples, at least 11 needed",)
            other.say(other.task(conditions=Conditions(min_examples=11)))
            failed = await other.hear(Failed)
            assert (failed.code, failed.detail) == ("conditions", "10 examples, at least 11 needed")
            report = await other.work(other.task(attempt=1, conditions=RESTED))
            assert isinstance(report, Report)
            hello = await other.hear(Hello)  # at once: agents look again after seconds, and this test does not wait
            assert isinstance(hello.unmet, tuple)
            assert hello.unmet[0].startswith("it took part 0 s ago, at least 100 s needed")
            assert hello.pending is not None
            other.say(other.task(attempt=2, conditions=RESTED))
            failed = await other.hear(Failed)
            assert failed.detail.startswith("it took part 0 s ago, at least 100 s needed")
            await until(lambda: one.service.state.task is None)

    play(scenario())
