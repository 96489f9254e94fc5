"""What a device keeps is gone after erasing, however often that is cut short, and nothing else is."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from device_agent import erase as erasing
from device_agent.checkpoint import FILE
from device_agent.cli import agent
from device_agent.erase import erase, kept
from device_agent.place import Place
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.chunks import Receiver
from edgepfl.errors import ConfigError, StoreError

SECRET = b"what a wearer's weights would be " * 40


class PowerCut(BaseException):
    """It ends a process wherever it is."""


def used(state: Path) -> None:
    """A state directory that holds the secret in each place that there is, its log not yet in its file."""
    place = Place.open(state)
    place.store.commit_pending("run", 0, 0, keep=SECRET, report=SECRET, upload=SECRET, serving=SECRET)
    place.store.close_round("run", 0, accepted=True)
    place.fetched.keep(SECRET)
    place.offered.keep(SECRET + b"!")
    (state / FILE).write_bytes(SECRET)
    (state / f"{FILE}.tmp").write_bytes(SECRET)
    log = (state / "store.db-wal").read_bytes()
    place.store.close()
    (state / "store.db-wal").write_bytes(log)  # as a kill leaves it


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def settings(folder: Path) -> list[str]:
    (folder / "agent.toml").write_text(
        'device = "pi-07"\nfleet = "f"\n[broker]\nurl = "mqtt://127.0.0.1"\n[data]\nsource = "data.npz"\n', "utf-8"
    )
    return ["erase", "--config", str(folder / "agent.toml")]


def test_all_that_was_there_is_told_and_gone(tmp_path: Path) -> None:
    used(tmp_path)
    before = everything(tmp_path)
    erased = erase(tmp_path)
    del before["store.db.lock"]
    assert {each.path: (each.size, each.sha256) for each in erased} == {
        name: (len(data), sha256(data).hexdigest()) for name, data in before.items()
    }
    assert len(before) >= 6
    assert kept(tmp_path) == []
    assert everything(tmp_path) == {"store.db.lock": b""}
    assert erase(tmp_path) == []


def test_bytes_are_overwritten_before_their_names_go(tmp_path: Path) -> None:
    used(tmp_path)
    ours = tmp_path / "others"
    ours.mkdir()
    names = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "store.db.lock"]
    for number, path in enumerate(names):  # a second name of the same bytes shows what becomes of them
        os.link(path, ours / str(number))
    assert any(SECRET in data for data in everything(ours).values())
    erase(tmp_path)
    assert all(not any(data) for data in everything(ours).values())
    assert len(everything(ours)) == len(names)


def test_what_is_not_the_agents_stays(tmp_path: Path) -> None:
    used(tmp_path)
    theirs = {"agent.toml": b"a", "checkpoint.md": b"b", "fetched/notes": b"c", "offered/deep/er": b"d", "aim": b"e"}
    for name, data in theirs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / "aim")
    erase(tmp_path)
    assert everything(tmp_path) == {**theirs, "store.db.lock": b""}
    assert not (tmp_path / FILE).is_symlink()


def test_it_may_be_cut_short_anywhere_and_ends_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite = erasing._overwrite
    used(tmp_path / "count")
    files = len(kept(tmp_path / "count"))
    for cut in range(files):
        state, done = tmp_path / str(cut), 0

        def until_the_cut(path: Path, size: int, cut: int = cut) -> None:
            nonlocal done
            overwrite(path, size // 2 if done == cut else size)
            if done == cut:
                raise PowerCut
            done += 1

        used(state)
        with monkeypatch.context() as patched:
            patched.setattr(erasing, "_overwrite", until_the_cut)
            with pytest.raises(PowerCut):
                erase(state)
        assert kept(state)
        with Place.open(state).store as store:  # an agent that starts now is a new one
            assert store.standings() == {}
        erase(state)
        assert everything(state) == {"store.db.lock": b""}


def test_a_database_that_was_renamed_is_overwritten_though_there_is_another(tmp_path: Path) -> None:
    used(tmp_path)
    (tmp_path / "store.db").rename(tmp_path / "store.db.erasing")  # then the power went
    os.link(tmp_path / "store.db.erasing", tmp_path / "bytes")
    Place.open(tmp_path).store.close()
    erase(tmp_path)
    assert not any((tmp_path / "bytes").read_bytes())


def test_a_running_agent_is_not_erased(tmp_path: Path) -> None:
    with Place.open(tmp_path).store as store:
        store.commit_pending("run", 0, 0, keep=SECRET, report=b"")
        with pytest.raises(StoreError, match="another agent is using it") as caught:
            erase(tmp_path)
        assert "Stop that agent" in caught.value.remedy
        assert store.standings() == {"run": (-1, (0, 0))}


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no state"):
        erase(tmp_path / "none")


def test_the_command_erases_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = settings(tmp_path)
    used(tmp_path / "state")
    assert agent([*command, "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"store.db", "store.db-wal", FILE} <= {each["path"] for each in told["erased"]}
    assert kept(tmp_path / "state") == []
    assert agent([*command, "--all"]) == 0
    assert "0 files erased" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        agent(command)


def test_the_command_erases_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = settings(tmp_path)
    with Place.open(tmp_path / "state").store as store:
        for run in ("one", "two"):
            store.commit_pending(run, 0, 0, keep=SECRET + run.encode(), report=b"")
    assert agent([*command, "--run", "one"]) == 0
    assert "one: forgotten" in capsys.readouterr().out
    held = b"".join(everything(tmp_path / "state").values())
    assert SECRET + b"one" not in held
    assert SECRET + b"two" in held
    with closing(sqlite3.connect(tmp_path / "state" / "store.db")) as database:
        assert database.execute("SELECT run FROM pending").fetchall() == [("two",)]
    with pytest.raises(ConfigError, match="nothing is kept"):
        agent([*command, "--run", "one"])


def test_only_its_owner_may_read_what_an_agent_writes_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    elsewhere = BlobStore(tmp_path / "elsewhere")
    coming = elsewhere.ref(elsewhere.keep(bytes(300_000)))
    before = os.umask(0)
    try:
        for state in (tmp_path / "new", tmp_path / "there"):
            place = Place.open(state)
            place.store.commit_pending("run", 0, 0, keep=SECRET, report=SECRET)
            place.fetched.keep(SECRET)
            place.offered.keep(SECRET)
            assert not Receiver(place.fetched).want(coming, 0.0)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.rglob("*")}
            place.store.close()
            assert {"store.db", "store.db-wal", "store.db-shm", "store.db.lock", "fetched", "offered"} < modes.keys()
            assert place.fetched.part(coming.sha256).name in modes
            assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
