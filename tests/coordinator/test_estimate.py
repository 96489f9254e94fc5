"""``edgepfl estimate``: bytes of a round, by what grows with what.

That a real run moves as many is in ``tests/e2e/test_estimated_traffic.py``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from _plans import bundle_of

from coordinator.cli import _run_config, _run_parser
from coordinator.config import RunConfig
from coordinator.estimate import estimate
from coordinator.estimate_command import main
from coordinator.estimated import Estimate, Line, human, table, total
from edgepfl import wire
from edgepfl.bundle import pack
from edgepfl.coding import Coding
from edgepfl.errors import BundleError, ConfigError


def told(name: str = "fedavg", codec: str = "", devices: int = 4, goal: int | None = None, rounds: int = 3) -> Estimate:
    config = RunConfig(goal=goal or devices, rounds=rounds, codec=codec)
    return estimate(bundle_of(name), config, [f"pi-{number:02}" for number in range(devices)])


def line(found: Estimate, what: str) -> Line:
    return next(each for each in found.lines if each.what == what)


def test_a_round_is_its_lines_and_a_run_its_rounds_the_last_evaluation_and_the_bundle() -> None:
    found = told()
    assert found.round == total("round", found.lines)
    evaluation = total("last", [line(found, "task"), line(found, "download"), line(found, "commit")])
    expected = total("run", [found.round.times(3), evaluation, found.once])
    reports = [each - other for each, other in zip(found.run.sockets, expected.sockets, strict=True)]
    assert reports[0] == reports[2] * 4 == 4 * 4  # acknowledgements
    assert 0 < reports[1] == reports[3] * 4 < 4 * 1.2 * line(found, "report").device_out


def test_a_broadcast_costs_the_coordinator_no_more_for_more_devices_but_their_names() -> None:
    few, many = told(devices=4), told(devices=40)
    for what in ("task", "commit"):
        more = line(many, what).coordinator_out - line(few, what).coordinator_out
        assert 36 * 6 <= more < 36 * 12
    assert line(many, "download") == line(few, "download")
    assert many.round.coordinator_in > 9 * few.round.coordinator_in
    assert line(many, "upload").device_out == line(few, "upload").device_out


def test_what_each_device_gets_for_itself_is_multiplied() -> None:
    found = told("fpfc", devices=10)
    assert found.each_its_own
    assert line(found, "task").coordinator_out == 10 * line(found, "task").device_in
    assert line(found, "download").coordinator_out == 10 * line(found, "download").device_in


@pytest.mark.parametrize("codec", ["float16", "int8", "int4"])
def test_uploads_by_codecs_that_round_are_exactly_as_long(codec: str) -> None:
    found = told("ditto", codec)
    assert found.upload_exact
    assert line(found, "upload").size == Coding(codec, bundle_of("ditto").plan).size.bytes
    assert line(found, "upload").size < line(told("ditto"), "upload").size


@pytest.mark.parametrize("codec", ["zlib", "sparse", "topk:0.2+int8", "int8+zlib"])
def test_the_length_of_other_uploads_is_that_of_random_changes(codec: str) -> None:
    found = told("ditto", codec)
    assert not found.upload_exact
    assert 0 < line(found, "upload").size <= Coding(codec, bundle_of("ditto").plan).size.bytes
    assert "about as long" in table(found)


def test_the_bundle_leaves_the_coordinator_for_each_group_of_newcomers_and_reaches_a_device_once() -> None:
    once, thrice = told(devices=6, rounds=5), told(devices=6, goal=2, rounds=5)
    assert once.once.size == thrice.once.size == len(pack(bundle_of("fedavg")))
    rest = thrice.run.coordinator_out - thrice.round.coordinator_out * 5
    assert rest > 3 * thrice.once.coordinator_out
    assert once.run.coordinator_out - once.round.coordinator_out * 5 < 2 * once.once.coordinator_out + 6 * 10_000


def test_a_run_that_would_be_refused_is_refused_here() -> None:
    with pytest.raises(ConfigError, match="feddyn would make up for them"):
        told("feddyn", "topk:0.1")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345, "12.3 kB"), (999_700, "1000 kB"), (2_406_676, "2.41 MB")],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert human(size) == text


def saved(folder: Path) -> str:
    path = folder / "a.bundle"
    path.write_bytes(pack(bundle_of("ditto")))
    return str(path)


def test_the_command_tells_people_and_scripts_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [saved(tmp_path), "--devices=20", "--goal=5", "--rounds=7", "--codec=int8", "--set=lam=0.5"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Estimate)
    assert (found.devices, found.goal, found.rounds, found.codec) == (20, 5, 7, "int8")
    assert shown == table(found)
    assert "5 of 20 devices a round, one download for all" in shown
    assert [row.split()[0] for row in shown.splitlines()[3:8]] == ["task", "download", "report", "upload", "commit"]
    assert human(found.run.coordinator_out) in shown


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--codec=int9"], "no such part of a codec"),
        (["--goal=11"], "11 of 10 devices"),
        (["--devices=0"], "0 of 0 devices"),
        (["--rounds=0"], "rounds"),
    ],
)
def test_numbers_and_words_that_will_not_do(words: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        main([saved(tmp_path), *words])


def test_a_bundle_that_is_not_there() -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        main(["nowhere.bundle"])


def test_a_run_is_started_with_a_codec_or_told_what_is_wrong_with_it() -> None:
    def config(*words: str) -> RunConfig:
        return _run_config(_run_parser().parse_args(["start", "--config=c", "--bundle=b", *words]))

    assert config().codec == ""
    assert config("--codec", "topk:0.05+int8+zlib").codec == "topk:0.05+int8+zlib"
    with pytest.raises(ConfigError, match="it needs a fraction between 0 and 1"):
        config("--codec", "topk:5")


def test_the_lengths_of_inline_blobs_are_not_counted_twice() -> None:
    found = told()
    task, download = line(found, "task"), line(found, "download")
    assert download.size <= wire.INLINE_LIMIT
    assert download.coordinator_out == download.size
    assert task.size < 2000
