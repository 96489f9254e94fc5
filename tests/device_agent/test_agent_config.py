from __future__ import annotations

from pathlib import Path

import pytest

from device_agent import config
from edgepfl.bus.blobs import Room
from edgepfl.bus.settings import Broker
from edgepfl.bus.transfer import Transfer
from edgepfl.errors import ConfigError

MINIMAL = """
device = "pi-07"
fleet = "watches"
[broker]
url = "mqtt://broker.example"
[data]
source = "watch:load"
"""

WHOLE = """
device = "pi-07"
fleet = "watches"
state = "/var/lib/edgepfl"
[broker]
url = "mqtts://broker.example:8884"
username = "pi-07"
password_file = "secrets/broker"
ca = "ca.pem"
cert = "pi.pem"
key = "pi.key"
[data]
source = "watch.npz"
options = {wearer = 3, arms = ["left"]}
[runtime]
threads = 4
spin = true
[work]
checkpoint_seconds = 600
[transfer]
chunk_kib = 32
quota_mib = 500
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_not_said_has_defaults(tmp_path: Path) -> None:
    found = config.load(write(tmp_path, MINIMAL))
    assert (found.device, found.fleet) == ("pi-07", "watches")
    assert found.state == str(tmp_path / "state")
    assert found.data.source == "watch:load"
    assert Path(found.data.folder) == tmp_path
    assert found.runtime == config.RuntimeSettings(threads=1, spin=False)
    assert found.work.checkpoint_seconds == 60.0
    assert found.broker == Broker(url="mqtt://broker.example")


def test_everything_can_be_said_and_paths_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path)
    found = config.load(Path("agent.toml"))
    assert found.state == "/var/lib/edgepfl"
    assert found.broker.password_file == str(tmp_path / "secrets/broker")
    assert [found.broker.ca, found.broker.cert, found.broker.key] == [
        str(tmp_path / name) for name in ("ca.pem", "pi.pem", "pi.key")
    ]
    assert found.data.source == str(tmp_path / "watch.npz")
    assert found.data.options == {"wearer": 3, "arms": ["left"]}
    assert found.runtime == config.RuntimeSettings(threads=4, spin=True)
    assert found.work.checkpoint_seconds == 600.0
    assert found.transfer == Transfer(chunk_kib=32, quota_mib=500, reserve_mib=64)
    assert found.transfer.room == Room(500 << 20, 64 << 20)


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("checkpoint_seconds = 600", "checkpoint_seconds = -1", "agent.toml, work.checkpoint_seconds", "from 0"),
        (
            "chunk_kib = 32",
            "chunk_kib = 48",
            "agent.toml, transfer.chunk_kib",
            "48 is not one of 0, 16, 32, 64, 128, 256",
        ),
        ("quota_mib = 500", "quota_mib = -1", "agent.toml, transfer.quota_mib", "-1 is not a whole number from 0"),
        ("quota_mib = 500", "quota = 1", "agent.toml, transfer.quota", "Did you mean 'quota_mib'"),
        ('device = "pi-07"', "", "agent.toml", "device is missing"),
        ('device = "pi-07"', 'device = "Pi 07"', "agent.toml, device", "'Pi 07' cannot be a name"),
        ('device = "pi-07"', "device = 7", "agent.toml, device", "7 is not a text"),
        ('fleet = "watches"', 'fleet = ""', "agent.toml, fleet", "cannot be a name"),
        ("spin = true", 'spin = "yes"', "agent.toml, runtime.spin", "'yes' is not true or false"),
        ("threads = 4", "threads = 0", "agent.toml, runtime.threads", "0 is not a whole number from 1 to 256"),
        ("threads = 4", "thread = 4", "agent.toml, runtime.thread", "Did you mean 'threads'"),
        ("[runtime]", "[run-time]", "agent.toml, run-time", "Did you mean 'runtime'"),
        ("[runtime]", "[weather]", "agent.toml, weather", "device, fleet, broker, data, state, runtime"),
        ('ca = "ca.pem"', "ca = 1", "agent.toml, broker.ca", "1 is not a text"),
        ('key = "pi.key"', "", "agent.toml, broker", "go together"),
        ('username = "pi-07"', "", "agent.toml, broker", "needs a user"),
        ("mqtts://broker.example:8884", "mqtt://broker.example", "agent.toml, broker.url", "mqtts://"),
        ("mqtts://broker.example:8884", "http://broker.example", "agent.toml, broker.url", "is no broker"),
        ("mqtts://broker.example:8884", "broker.example", "agent.toml, broker.url", "is no broker"),
        ("mqtts://broker.example:8884", "mqtts://broker.example:x", "agent.toml, broker.url", "is no broker"),
        ("mqtts://broker.example:8884", "mqtts://me:secret@broker.example", "agent.toml, broker.url", "username"),
        ('source = "watch.npz"', 'source = "watch"', "agent.toml, data.source", "is no data source"),
        ('source = "watch.npz"', 'source = "watch:"', "agent.toml, data.source", ".npz or .csv"),
        ('source = "watch.npz"', "", "agent.toml, data", "source is missing"),
        ("spin = true", "spin = 1", "agent.toml, runtime.spin", "1 is not true or false"),
    ],
)
def test_mistakes_are_told_with_file_key_and_cure(tmp_path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in WHOLE
    with pytest.raises(ConfigError) as caught:
        config.load(write(tmp_path, WHOLE.replace(old, new)))
    assert caught.value.where == str(tmp_path / place)
    assert says in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        config.load(tmp_path / "agent.toml")
    assert caught.value.where == str(tmp_path / "agent.toml")
    with pytest.raises(ConfigError, match="not TOML"):
        config.load(write(tmp_path, "device ="))
