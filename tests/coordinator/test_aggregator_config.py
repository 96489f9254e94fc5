"""What the settings of coordinator and aggregators say of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import config
from coordinator.aggregator import cli
from edgepfl.errors import ConfigError

BROKER = '[broker]\nurl = "mqtt://localhost"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text + BROKER)
    return path


def test_an_aggregators_settings(tmp_path: Path) -> None:
    found = cli.load(written(tmp_path, 'fleet = "home"\nstore = "shared"\n'))
    assert (found.fleet, found.store, found.device) == ("home", str(tmp_path / "shared"), "cpu")
    remote = cli.load(written(tmp_path, 'fleet = "home"\nstore = "s3://bucket/home"\ndevice = "cuda"\n'))
    assert (remote.store, remote.device) == ("s3://bucket/home", "cuda")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('fleet = "home"\n', "store"),
        ('fleet = "home"\nstore = ""\n', "store"),
        ('fleet = "home"\nstore = "ftp://host"\n', "is no store"),
        ('fleet = "HOME"\nstore = "shared"\n', "cannot be a name"),
        ('fleet = "home"\nstore = "shared"\nstate = "s"\n', "no such setting"),
        ('fleet = "home"\nstore = "shared"\ndevice = "tpu"\n', "tpu"),
    ],
)
def test_an_aggregators_wrong_settings(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        cli.load(written(tmp_path, text))


def test_a_coordinator_has_aggregators_where_its_settings_say_so(tmp_path: Path) -> None:
    alone = config.load(written(tmp_path, 'fleet = "home"\nstore = "shared"\n'))
    assert alone.aggregator is None
    found = config.load(written(tmp_path, 'fleet = "home"\nstore = "shared"\n[aggregator]\n'))
    assert found.aggregator is not None
    assert (found.store, found.aggregator.again) == (str(tmp_path / "shared"), 10.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('fleet = "home"\n[aggregator]\n', "needs a store"),
        ('fleet = "home"\nhubs = {"North" = 5}\n', "hubs: 'North' cannot be a name"),
        ('fleet = "home"\nstore = "s"\nhubs = {north = 5}\n[aggregator]\n', "hubs send sums"),
        ('fleet = "home"\nstore = "s"\n[aggregator]\nagain = 0\n', "again"),
        ('fleet = "home"\nstore = "s"\n[aggregator]\nranks = 4\n', "ranks"),
    ],
)
def test_a_coordinators_wrong_settings(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        config.load(written(tmp_path, text))
