"""Device profiles: the ones that come along, one's own, and who gets which."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import ConfigError
from simulators.faults import CALM, Way
from simulators.profiles import built_in, dealt, load_profiles, network, profile, slowdown
from simulators.profiles.command import main
from simulators.profiles.mix import counts
from simulators.profiles.profile import NUMBERS
from simulators.profiles.registry import parsed

PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"
NAMES = ("host", "pi-zero-2", "pi-3", "pi-4", "pi-5", "jetson-nano", "jetson-orin-nano")
PHONES = ("phone-low", "phone-mid", "phone-high")
OWN = """
[gateway]
about = "our gateway"
compute_factor = {value = 14, source = "estimate", what = "twice a Pi 4's, by its clock"}
uplink = {value = 1.0e5, source = "https://example.org/plan", what = "the plan's upload"}
"""


def test_every_number_that_a_profile_has_has_a_source() -> None:
    assert tuple(built_in()) == NAMES + PHONES
    for name, found in built_in().items():
        usual = profile("host")
        given_numbers = {field for field in NUMBERS if getattr(found, field) != getattr(usual, field)}
        assert given_numbers <= set(found.sources), name
        assert all(len(source.what) > 8 for source in found.sources.values()), name


def test_profiles_are_what_their_names_say() -> None:
    factors = [profile(name).compute_factor for name in ("pi-zero-2", "pi-3", "pi-4", "pi-5")]
    assert factors == sorted(factors, reverse=True)
    assert all(profile(name).runtime == "executorch" for name in PHONES)
    assert all(profile(name).battery_wh is not None for name in PHONES)
    assert all((profile(name).runtime, profile(name).battery_wh) == ("onnx", None) for name in NAMES)
    assert [profile(name).uplink for name in PHONES] == sorted(profile(name).uplink or 0 for name in PHONES)


def test_the_host_is_not_slowed_down_and_has_no_limit() -> None:
    host = profile("host")
    assert (slowdown(host), slowdown(host, host=3.0), network(host)) == (1.0, 1.0, CALM)
    assert (host.memory_mib, host.uplink, host.battery_wh) == (None, None, None)


def test_a_step_takes_longer_by_the_ratio_of_compute_factors() -> None:
    assert slowdown(profile("pi-4")) == 8.65
    assert slowdown(profile("pi-4"), host=2.0) == pytest.approx(4.325)
    assert slowdown(profile("phone-high"), host=2.0) == 1.0  # nothing runs faster than it does here


def test_a_profile_gives_the_fault_proxy_its_link() -> None:
    low = profile("phone-low")
    faults = network(low)
    assert faults.up == Way(delay=(low.latency, low.latency + low.jitter), rate=low.uplink or 0, drop=low.loss)
    assert faults.down.rate == low.downlink != faults.up.rate


def test_own_profiles_go_first_and_stand_beside_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN + '\n[pi-4]\nabout = "ours"\n', "utf-8")
    own = load_profiles(path)
    assert (profile("gateway", own).compute_factor, profile("gateway", own).uplink) == (14, 1e5)
    assert profile("gateway", own).sources["uplink"].source == "https://example.org/plan"
    assert (profile("pi-4", own).about, profile("pi-4", own).uplink) == ("ours", None)
    assert profile("pi-4").uplink is not None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a", r"mine\.toml: it is no TOML"),
        ("a = 3", r"mine\.toml, \[a\]: it is no table. Write \[a\]"),
        ("[a]", r"mine\.toml, \[a\]: .*about"),
        ("[a]\nabout = ''\nloss = 0.1", r"mine\.toml, \[a\], loss: .*Give \{value"),
        ("[a]\nabout = ''\nloss = {value = 0.1}", r"loss: .*source"),
        ("[a]\nabout = ''\nloss = {value = 0.1, source = 'a friend', what = 'he said so'}", r"loss: .*regex"),
        ("[a]\nabout = ''\nloss = {value = 2, source = 'estimate', what = 'a bad network'}", r"\[a\]: .*\$\.loss"),
        ("[a]\nabout = ''\nspeed = {value = 2, source = 'estimate', what = 'quite quick'}", r"\[a\]: .*speed"),
        ("[A]\nabout = ''", r"\[A\]: .*name"),
        ("[a]\nabout = ''\nkind = 'toaster'", r"\[a\]: .*toaster"),
        (
            "[a]\nabout = ''\nwatts_idle = {value = 2, source = 'estimate', what = 'it gets warm'}",
            "less while it works than while it waits",
        ),
        (
            "[a]\nabout = ''\nbattery_wh = {value = 2, source = 'estimate', what = 'a small cell'}",
            "battery_wh and watts_charger come together",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parsed(text, "mine.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: the profiles cannot be read"):
        load_profiles(tmp_path / "none.toml")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"there is no device profile 'pi-6'.*Name one of host, pi-zero-2"):
        profile("pi-6")


def test_counts_are_exact_by_the_largest_remainder() -> None:
    assert counts({"a": 1, "b": 1, "c": 1}, 10) == {"a": 4, "b": 3, "c": 3}
    assert counts({"a": 0.5, "b": 0.3, "c": 0.2}, 7) == {"a": 4, "b": 2, "c": 1}  # 3.5, 2.1, 1.4
    assert counts({"a": 1, "b": 0}, 3) == {"a": 3, "b": 0}


SHARES = st.dictionaries(st.sampled_from("abcdefg"), st.floats(0, 100), min_size=1).filter(
    lambda shares: math.fsum(shares.values()) > 1e-3
)


@given(SHARES, st.integers(0, 200))
def test_counts_sum_up_and_are_within_one_of_their_share(shares: dict[str, float], devices: int) -> None:
    found, total = counts(shares, devices), math.fsum(shares.values())
    assert sum(found.values()) == devices
    assert all(abs(found[name] - devices * share / total) < 1 + 1e-6 for name, share in shares.items())


@given(SHARES, st.integers(0, 60), st.integers(0, 5))
def test_devices_get_exactly_the_counts_and_the_same_for_the_same_seed(
    shares: dict[str, float], number: int, seed: int
) -> None:
    devices = [f"device-{each}" for each in range(number)]
    found = dealt(shares, devices, seed)
    wanted = {name: count for name, count in counts(shares, number).items() if count}
    assert sorted(found) == sorted(devices)
    assert Counter(found.values()) == wanted
    assert found == dealt(shares, devices, seed)


def test_another_seed_deals_otherwise() -> None:
    devices = [f"device-{each}" for each in range(40)]
    assert dealt({"a": 1, "b": 1}, devices, 1) != dealt({"a": 1, "b": 1}, devices, 2)


@pytest.mark.parametrize("shares", [{}, {"a": 0.0}, {"a": 2.0, "b": -1.0}, {"a": math.inf}, {"a": math.nan}])
def test_impossible_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="are no shares"):
        counts(shares, 3)


def test_the_command_lists_all_and_tells_the_sources_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["profile", *built_in()]
    assert main(["pi-zero-2"]) == 0
    told = capsys.readouterr().out
    assert all(str(source) in told for source in profile("pi-zero-2").sources.values())
    assert main(["--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (list(read), read["pi-4"]["compute_factor"], read["host"]["uplink"]) == ([*built_in()], 8.65, None)


def test_the_command_tells_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN, "utf-8")
    assert main(["--file", str(path), "gateway", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"]["uplink"]["what"] == "the plan's upload"
    with pytest.raises(SystemExit):
        main(["--file", str(path), "--markdown", str(path)])


def test_the_manual_shows_the_numbers_of_the_file(tmp_path: Path) -> None:
    again = tmp_path / "profiles.md"
    again.write_text(PAGE.read_text("utf-8"), "utf-8")
    assert main(["--markdown", str(again)]) == 0
    assert again.read_text("utf-8") == PAGE.read_text("utf-8"), "edgepfl profiles --markdown docs/profiles.md"
