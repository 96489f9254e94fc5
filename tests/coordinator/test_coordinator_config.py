"""Settings that cannot be are refused with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.cli import _run_config, _run_parser
from coordinator.config import CoordinatorConfig, RunConfig, TransferTable, load
from edgepfl.bus.settings import Broker
from edgepfl.errors import ConfigError

GOOD = 'fleet = "home"\n[broker]\nurl = "mqtt://localhost:1883"\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "coordinator.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    state = str(tmp_path / "coordinator-state")
    assert load(path) == CoordinatorConfig(fleet="home", broker=Broker(url="mqtt://localhost:1883"), state=state)
    text = 'state = "/var/lib/edgepfl"\ndevice = "cuda"\n' + GOOD.replace("mqtt:", "mqtts:") + 'ca = "ca.pem"\n'
    config = load(written(tmp_path, text))
    assert (config.state, config.device, config.broker.ca) == ("/var/lib/edgepfl", "cuda", str(tmp_path / "ca.pem"))


def test_a_store_is_a_directory_beside_the_file_or_a_bucket(tmp_path: Path) -> None:
    assert not load(written(tmp_path, GOOD)).store
    for given, meant in {
        "blobs": str(tmp_path / "blobs"),
        "file:///srv/blobs": "/srv/blobs",
        "s3://bucket/a?region=eu-west-1": "s3://bucket/a?region=eu-west-1",
    }.items():
        assert load(written(tmp_path, f'store = "{given}"\n{GOOD}')).store == meant


def test_transfers_may_be_limited(tmp_path: Path) -> None:
    assert load(written(tmp_path, GOOD)).transfer == TransferTable(chunk_kib=0, quota_mib=0, under_way_mib=16)
    text = GOOD + "[transfer]\nchunk_kib = 64\nquota_mib = 10\nreserve_mib = 0\nunder_way_mib = 4\n"
    found = load(written(tmp_path, text)).transfer
    assert found == TransferTable(chunk_kib=64, quota_mib=10, reserve_mib=0, under_way_mib=4)


BAD = {
    "no upload at a time": (
        GOOD + "[transfer]\nunder_way_mib = 0\n",
        "0 is not a whole number from 1",
        "transfer.under_way_mib",
    ),
    "a size of chunk that is none": (
        GOOD + "[transfer]\nchunk_kib = 63\n",
        "63 is not one of 0, 16, 32, 64, 128, 256",
        "transfer.chunk_kib",
    ),
    "no TOML": ("fleet =", "not TOML", ""),
    "an unknown key": ("flet = 1\n" + GOOD, "no such setting", "flet"),
    "an unknown key of the broker": (GOOD + "port = 1883\n", "no such setting", "broker.port"),
    "no fleet": ('[broker]\nurl = "mqtt://localhost"\n', "fleet is missing", ""),
    "no broker": ('fleet = "home"\n', "broker is missing", ""),
    "a number for a name": (GOOD.replace('"home"', "7"), "7 is not a text", "fleet"),
    "a name that cannot be one": (GOOD.replace("home", "my home"), "cannot be a name", "fleet"),
    "no broker's URL": (GOOD.replace("mqtt://", "http://"), "is no broker", "broker.url"),
    "a store that is none": ('store = "gopher://somewhere"\n' + GOOD, "is no store", "store"),
    "no device": ('device = "tpu"\n' + GOOD, "'tpu' is not one of 'cpu', 'cuda'", "device"),
}


@pytest.mark.parametrize(("text", "words", "place"), BAD.values(), ids=BAD.keys())
def test_a_bad_file(text: str, words: str, place: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as caught:
        load(path)
    assert str(path) in caught.value.where
    assert caught.value.where.endswith(place)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load(tmp_path / "nowhere.toml")
    assert "nowhere.toml" in str(caught.value)


RUNS: dict[str, dict[str, Any]] = {
    "no rounds": {"rounds": 0},
    "no steps": {"steps": 0},
    "half a round": {"rounds": 1.5},
    "too large a cohort": {"goal": 2001},
    "nobody": {"goal": 0, "minimum": 0},
    "more than are wanted": {"goal": 2, "minimum": 3},
    "no lease": {"lease": 0},
    "time that runs back": {"deadline": -1},
    "a negative seed": {"seed": -1},
    "a seed that SQLite cannot hold": {"seed": 1 << 63},
    "a hyperparameter that is no number": {"hyper": {"lr": float("nan")}},
    "a hyperparameter that is a list": {"hyper": {"lr": [1]}},
    "a norm of nothing": {"max_norm": 0},
    "no attempt": {"attempts": 0},
    "patience that runs back": {"patience": -1.0},
    "decay to nothing": {"decay": {"lr": 0.0}},
    "decay that is no growth any more": {"decay": {"lr": 11.0}},
    "decay that is no number": {"decay": {"lr": float("nan")}},
    "an unknown setting": {"rouns": 3},
}


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS.keys())
def test_a_run_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, RunConfig)
    good = {name: value for name, value in msgspec.structs.asdict(RunConfig()).items() if name not in fields}
    assert msgspec.convert(good, RunConfig) == RunConfig()


def test_the_widest_run_is_allowed() -> None:
    wide = {"rounds": 1 << 31, "goal": 2000, "minimum": 2000, "seed": (1 << 63) - 1, "evaluate_every": 0}
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(wide, RunConfig)), type=RunConfig).goal == 2000
    assert RunConfig().minimum <= RunConfig().goal


def test_the_command_line_sets_every_number_of_a_run() -> None:
    numbers = {name for name, value in msgspec.structs.asdict(RunConfig()).items() if type(value) in {int, float}}
    given = dict.fromkeys(numbers, 7) | dict.fromkeys(("canary", "halt_failures", "over"), 1)  # limited
    words = [f"--{name.replace('_', '-')}={value}" for name, value in sorted(given.items())]
    parsed = _run_parser().parse_args(
        [
            "start",
            "--config=c",
            "--bundle=b",
            "--set",
            "lr=0.5",
            "--set",
            "w=uniform",
            "--decay",
            "lr=0.99",
            "--secagg",
            *words,
        ]
    )
    config = _run_config(parsed)
    assert config.secagg
    assert {name: getattr(config, name) for name in numbers} == given
    assert config.decay == {"lr": 0.99}
    parsed = _run_parser().parse_args(["start", "--config=c", "--bundle=b", "--goal=30", "--over=1.1"])
    assert _run_config(parsed).selected == 33
    assert config.hyper == {"lr": "0.5", "w": "uniform"}  # for algorithms.build to convert and check


@pytest.mark.parametrize("option", ["--secagg-clip=3", "--secagg-neighbours=4"])
def test_what_is_for_secure_aggregation_alone_is_refused_without_it(option: str) -> None:
    words = ["start", "--config=c", "--bundle=b", option]
    with pytest.raises(ConfigError, match="for secure aggregation alone"):
        _run_config(_run_parser().parse_args(words))
    assert _run_config(_run_parser().parse_args([*words, "--secagg"])).secagg
    assert not _run_config(_run_parser().parse_args(words[:3])).secagg


def test_the_command_line_names_a_robust_rule_and_a_server_optimiser() -> None:
    words = ["start", "--config=c", "--bundle=b", "--robust", "krum:2", "--server-optimizer", "fedadam:lr=0.5"]
    config = _run_config(_run_parser().parse_args(words))
    assert (config.robust, config.server_optimizer) == ("krum:2", "fedadam:lr=0.5")
    plain = _run_config(_run_parser().parse_args(words[:3]))
    assert (plain.robust, plain.server_optimizer) == ("", "")


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "lr"],
        ["--set", "=1"],
        ["--minimum=3"],
        ["--set", "lr="],
        ["--goal=0"],
        ["--decay", "lr=-1"],
        ["--decay", "lr=x"],
    ],
)
def test_a_command_line_that_cannot_be(words: list[str]) -> None:
    parsed = _run_parser().parse_args(["start", "--config=c", "--bundle=b", *words])
    with pytest.raises(ConfigError) as caught:
        _run_config(parsed)
    assert caught.value.remedy
