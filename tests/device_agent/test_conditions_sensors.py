"""What the sensors of some machines say, read from files as they are there; and of files that make no sense."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from _boards import FIRMWARE, HEADER, JETSON, LAPTOP, NET, PHONE, PI_4, PI_5, SUPPLY, THERMAL, build, route
from hypothesis import given
from hypothesis import strategies as st

from device_agent import conditions
from device_agent.conditions import OwnLoad, Sensors
from device_agent.conditions_sampler import Sampler
from device_agent.config import ConditionSettings
from edgepfl.eligibility import Conditions, Readings, unmet

NIGHT = time.struct_time((2031, 5, 4, 23, 17, 0, 6, 124, 0))
UNSET = time.struct_time((1970, 1, 1, 0, 0, 9, 3, 1, 0))
MACHINES: dict[str, tuple[Mapping[str, str], dict[str, object]]] = {
    "Pi 4 by cable": (PI_4, {"powered": True, "battery": None, "temperature": 48.312, "throttled": False,
                             "link": "ethernet", "metered": False}),
    "Pi 5, hot, weak supply": (PI_5, {"powered": True, "battery": None, "temperature": 83.9, "throttled": True,
                                      "link": "wifi", "metered": False}),
    "Jetson, throttled": (JETSON, {"powered": True, "battery": None, "temperature": 52.812, "throttled": True,
                                   "link": "ethernet", "metered": False}),
    "laptop on battery": (LAPTOP, {"powered": False, "battery": 0.625, "temperature": 61.25, "throttled": False,
                                   "link": "other", "metered": False}),
    "phone on charge": (PHONE, {"powered": True, "battery": 0.64, "temperature": 39.2, "throttled": True,
                                "link": "cellular", "metered": True}),
    "nothing at all": ({}, {"powered": True, "battery": None, "temperature": None, "throttled": None,
                            "link": None, "metered": None}),
}  # fmt: skip


def read(folder: Path, files: Mapping[str, str], settings: ConditionSettings | None = None) -> Readings:
    """The readings of a machine with these files."""
    sys, proc = build(folder, files)
    return Sensors(folder, settings or ConditionSettings(), sys=sys, proc=proc, now=lambda: NIGHT)()


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_read_as_it_is(tmp_path: Path, machine: str) -> None:
    files, expected = MACHINES[machine]
    readings = read(tmp_path, files)
    assert {name: getattr(readings, name) for name in expected} == expected
    assert readings.minute == 23 * 60 + 17
    assert readings.load is not None
    assert readings.free_disk_mib == pytest.approx(psutil.disk_usage(str(tmp_path)).free / 2**20, rel=0.2)
    assert readings.free_memory_mib is not None
    assert 0 < readings.free_memory_mib <= psutil.virtual_memory().total / 2**20


def test_a_board_without_a_battery_is_powered_and_one_without_files_cannot_tell(tmp_path: Path) -> None:
    asked = Conditions(charging=True, min_battery=0.5)
    assert unmet(asked, read(tmp_path / "pi", PI_4)) == ()
    nowhere = Sensors(tmp_path, ConditionSettings(), sys=tmp_path / "none", proc=tmp_path / "none")()
    assert unmet(asked, nowhere) == ("it cannot tell whether it is charging", "no battery sensor")


@pytest.mark.parametrize(
    ("bits", "slow"), [("0", False), ("50000", False), ("1", True), ("2", True), ("4", True), ("8", True), ("", None)]
)
def test_the_raspberry_pi_says_what_is_so_now_and_what_was(tmp_path: Path, bits: str, slow: bool | None) -> None:  # noqa: FBT001  drawn
    sys, _ = build(tmp_path, {FIRMWARE: f"{bits}\n"})
    assert conditions.throttled(sys) is slow


@pytest.mark.parametrize(
    ("statuses", "online", "powered"),
    [
        (("Charging", "Not charging"), "1", True),
        (("Full",), "0", True),
        (("Discharging", "Charging"), "1", False),  # it draws more than it gets
        (("Not charging",), "1", True),  # full enough, says the owner
        (("Not charging",), "0", False),
        (("Unknown",), "1", True),
        (("Unknown",), "0", False),
        (("Unknown",), None, None),
        (("",), None, None),
        ((), "0", True),
    ],
)
def test_what_charging_means(
    tmp_path: Path,
    statuses: tuple[str, ...],
    online: str | None,
    powered: bool | None,  # noqa: FBT001  drawn
) -> None:
    files: dict[str, str] = {}
    for number, status in enumerate(statuses):
        files |= {f"{SUPPLY}/BAT{number}/type": "Battery", f"{SUPPLY}/BAT{number}/status": status}
    if online is not None:
        files |= {f"{SUPPLY}/AC/type": "Mains", f"{SUPPLY}/AC/online": online}
    assert conditions.power(build(tmp_path, files)[0])[0] is powered


def test_a_slot_without_a_battery_is_no_battery(tmp_path: Path) -> None:
    files = {f"{SUPPLY}/BAT0/type": "Battery", f"{SUPPLY}/BAT0/present": "0", f"{SUPPLY}/BAT0/status": "Unknown"}
    assert conditions.power(build(tmp_path, files)[0]) == (True, None)


def test_the_owners_word_goes_before_what_is_measured(tmp_path: Path) -> None:
    known = ConditionSettings(metered=True, wifi=False, powered=False)
    readings = read(tmp_path, PI_4, known)
    assert (readings.metered, readings.link, readings.powered) == (True, "other", False)
    readings = read(tmp_path, PHONE, ConditionSettings(metered=False, wifi=True))
    assert (readings.metered, readings.link) == (False, "wifi")


@pytest.mark.parametrize(
    "lines",
    ["", "nonsense", HEADER + route("wlan0").replace("0003", "0000"), HEADER + route("../../etc"), HEADER + "\xff" * 9],
)
def test_a_route_that_is_none_gives_no_link(tmp_path: Path, lines: str) -> None:
    sys, proc = build(tmp_path, {f"{NET}/wlan0/type": "1"})
    (proc / "net").mkdir()
    (proc / "net" / "route").write_text(lines, encoding="latin-1")
    assert conditions.link(sys, proc) is None


def test_a_clock_that_was_never_set_gives_no_time_of_the_day() -> None:
    assert conditions.minute(UNSET) is None
    assert conditions.minute(NIGHT) == 23 * 60 + 17


FILES = (
    FIRMWARE,
    f"{SUPPLY}/BAT0/capacity",
    f"{SUPPLY}/BAT0/status",
    f"{THERMAL}/thermal_zone0/temp",
    "proc/net/route",
)


@given(st.dictionaries(st.sampled_from(FILES), st.binary(max_size=40) | st.just(b"9" * 5000) | st.just(b"9" * 400)))
def test_odd_files_give_readings_or_none_and_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, odd: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("odd")
    sys, proc = build(root, {**PI_4, f"{SUPPLY}/BAT0/type": "Battery"})
    for name, data in odd.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    readings = Sensors(root, ConditionSettings(), sys=sys, proc=proc)()
    assert readings.battery is None or 0 <= readings.battery <= 1
    assert readings.temperature is None or -60 < readings.temperature < 150


def test_what_may_not_be_read_or_is_a_folder_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    sys, proc = build(tmp_path, LAPTOP)
    (sys / "class" / "hwmon" / "hwmon3" / "temp1_input").unlink()
    (sys / "class" / "hwmon" / "hwmon3" / "temp1_input").mkdir()
    assert conditions.temperature(sys) == 27.8
    (proc / "net" / "route").unlink()
    assert conditions.link(sys, proc) is None


def test_this_process_own_work_is_no_load() -> None:
    clock, spent = iter([0.0, 60.0, 600.0]), iter([0.0, 60.0, 600.0])  # one core busy for ten minutes, all ours
    own = OwnLoad(lambda: next(clock), lambda: next(spent))
    assert own.others(1 - math.exp(-1), cores=4) == pytest.approx(0.0, abs=1e-9)  # as the kernel has it after a minute
    assert own.others(3.0, cores=4) == pytest.approx(0.5, abs=1e-3)  # two of three are others', on four cores


class Slow:
    """Sensors that say how often they were read."""

    def __init__(self) -> None:
        self.read = threading.Semaphore(0)
        self.count = 0
        self.readers: set[str] = set()

    def __call__(self) -> Readings:
        self.count += 1
        self.readers.add(threading.current_thread().name)
        self.read.release()
        return Readings(load=float(self.count))


def test_the_sampler_answers_at_once_and_rests_while_nobody_asks() -> None:
    sensors = Slow()
    with Sampler(sensors, 0.01) as sampler:
        assert sensors.count == 0
        assert sampler().load == 1.0
        assert sensors.read.acquire(timeout=60)
        assert sensors.read.acquire(timeout=60)  # the thread's first
        while sampler._latest is not None:  # it rests after two intervals without a question
            time.sleep(0.001)
        before = sensors.count
        assert sampler().load == before + 1.0
    assert sensors.readers == {threading.current_thread().name, "sensors"}
    assert not any(thread.name == "sensors" for thread in threading.enumerate())
