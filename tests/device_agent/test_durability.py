"""What an agent keeps over power cuts, restarts and a full disk: the service with real graphs and a real storage."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from _bundles import ditto_bundle
from _components import absent
from _hand import DEVICE, Agent, Hand, agent, hand, play, until

from device_agent.place import Place
from device_agent.session import Standing
from device_agent.store import Settlement, Store
from edgepfl.bundle import Bundle
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import StoreError
from edgepfl.wire import Cancel, Commit, Failed, Gone, Progress, Report, Task

LONG = 8000  # steps: more than an agent does until it is told to end
OFTEN = 0.05  # seconds


@pytest.fixture
def ditto() -> Bundle:
    """Exported once for all tests."""
    return ditto_bundle()


@asynccontextmanager
async def scene(folder: Path, bundle: Bundle) -> AsyncIterator[tuple[LoopbackBroker, Hand]]:
    broker = LoopbackBroker()
    async with hand(broker, folder, bundle) as coordinator:
        yield broker, coordinator


def checkpointing(broker: LoopbackBroker, folder: Path) -> Agent:
    """An agent that takes many checkpoints."""
    one = Agent(broker, folder)
    one.service._jobs._checkpoint_seconds = OFTEN
    return one


async def progressed(coordinator: Hand, steps: int) -> int:
    """Until a device says that it has done more steps than this; how many."""
    while (found := (await coordinator.hear(Progress)).steps) <= steps:
        pass
    return found


def long_task(coordinator: Hand, **fields: Any) -> Task:  # noqa: ANN401  of Task
    return coordinator.task(**{"steps": LONG, "heartbeat": 0.1, "evaluate": True, **fields})


async def undisturbed(coordinator: Hand, broker: LoopbackBroker, folder: Path, task: Task) -> Report:
    """What a new device says of a task when nothing disturbs it."""
    async with agent(broker, folder):
        report = await coordinator.work(task)
    await coordinator.hear(Gone)
    return report


def test_a_round_goes_on_after_the_agent_was_told_to_end(
    tmp_path: Path, ditto: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator):
            task = long_task(coordinator)
            expected = await undisturbed(coordinator, broker, tmp_path / "other", task)
            done = 0
            for _ in range(2):
                one = checkpointing(broker, tmp_path / "device")
                await one.start()
                coordinator.backlog.clear()  # also what the other device said
                coordinator.say(task)
                before, done = done, await progressed(coordinator, done)
                assert done > before
                assert await one.end() is None
                await coordinator.hear(Gone)
            again = checkpointing(broker, tmp_path / "device")
            await again.start()
            report = await coordinator.work(task)
            assert (report.kept, report.upload, report.metrics) == (expected.kept, expected.upload, expected.metrics)
            assert report.steps == LONG
            assert caplog.text.count("going on at step") == 2
            assert again.place.checkpoint is not None
            assert not again.place.checkpoint.exists
            assert await again.end() is None

    play(scenario())


@pytest.mark.parametrize("ending", ["cancel", "commit", "another task", "another run"])
def test_a_checkpoint_is_deleted_with_its_round(tmp_path: Path, ditto: Bundle, ending: str) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator):
            one = checkpointing(broker, tmp_path / "device")
            await one.start()
            file = one.place.checkpoint
            assert file is not None
            coordinator.say(long_task(coordinator, steps=1 << 30))
            await progressed(coordinator, 0)
            await until(lambda: file.exists)
            match ending:
                case "cancel":
                    coordinator.say(Cancel("run", 1, 0, "too late"))
                case "commit":
                    coordinator.say(Commit("run", 1, ("pi-08",)))
                case "another task":
                    await coordinator.work(coordinator.task(attempt=1))
                case "another run":
                    await coordinator.work(coordinator.task("other"))
            await until(lambda: not one.service._jobs)
            assert not file.exists
            assert await one.end() is None

    play(scenario())


def uploads(folder: Path) -> list[Path]:
    return list((folder / "offered").iterdir())


def tear(path: Path) -> None:
    """What a lying disk leaves: a file of the right length and other bytes."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [Path.unlink, tear], ids=["lost", "damaged"])
def test_an_upload_that_the_disk_lost_is_made_again_with_the_same_bits(
    tmp_path: Path,
    ditto: Bundle,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator):
            task = coordinator.task()
            async with agent(broker, tmp_path / "device"):
                first = await coordinator.work(task)
            await coordinator.hear(Gone)
            [upload] = uploads(tmp_path / "device")
            whole = upload.read_bytes()
            damage(upload)
            async with agent(broker, tmp_path / "device") as again:
                assert "is done again" in caplog.text
                assert again.service.state.standing("run") == Standing(-1, (1, 0), whole=False)
                assert await coordinator.hear(Report) == first  # the coordinator may have the upload
                second = await coordinator.work(task)
                assert (second.kept, second.upload, second.session) == (first.kept, first.upload, 2)
                assert again.service.state.standing("run") == Standing(-1, (1, 0))
                assert second.upload is not None
                assert await coordinator.fetch(second.upload) == whole
                assert await coordinator.work(task) == second  # and is not done a third time

    play(scenario())


def test_a_lost_upload_that_the_coordinator_has_is_nobodys_loss(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator):
            async with agent(broker, tmp_path / "device"):
                report = await coordinator.work(coordinator.task())
            await coordinator.hear(Gone)
            for upload in uploads(tmp_path / "device"):
                upload.unlink()
            async with agent(broker, tmp_path / "device") as again:
                await coordinator.hear(Report)
                coordinator.say(Commit("run", 1, (DEVICE,)))
                await until(lambda: again.place.store.keep("run").round == 1)
                following = await coordinator.work(coordinator.task(round_=2, accepted=1))
                assert following.kept != report.kept

    play(scenario())


def test_an_upload_that_no_report_names_is_deleted_at_start(tmp_path: Path, ditto: Bundle) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator):
            async with agent(broker, tmp_path / "device"):
                await coordinator.work(coordinator.task())
            await coordinator.hear(Gone)
            [upload] = uploads(tmp_path / "device")
            place = Place.open(tmp_path / "device")
            place.offered.put(b"of a round whose report was never stored" * 1000)
            place.store.close()
            assert len(uploads(tmp_path / "device")) == 2
            async with agent(broker, tmp_path / "device"):
                assert uploads(tmp_path / "device") == [upload]

    play(scenario())


def shrink(place: Place) -> int:
    """Let the database have no page more than it has, as on a full disk; how many it might have had."""
    with place.store._database.transaction() as database:
        [most] = database.execute("PRAGMA max_page_count").fetchone()
        database.execute("PRAGMA max_page_count = 1")  # SQLite takes as many as there are
    return int(most)


def grow(place: Place, most: int) -> None:
    with place.store._database.transaction() as database:
        database.execute(f"PRAGMA max_page_count = {most}")


def test_a_result_for_which_the_disk_has_no_room_fails_its_task_and_the_next_one_is_done(
    tmp_path: Path, ditto: Bundle
) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, ditto) as (broker, coordinator), agent(broker, tmp_path / "device") as one:
            most = shrink(one.place)
            coordinator.say(coordinator.task())
            failed = await coordinator.hear(Failed)
            assert failed.code == "StoreError"
            assert "free some space" in failed.detail
            assert one.place.store.standings() == {}
            assert not list((tmp_path / "device" / "fetched").iterdir())  # what can be had again made room
            grow(one.place, most)
            assert (await coordinator.work(coordinator.task(attempt=1))).attempt == 1

    play(scenario())


class FullStore(Store):
    """There is no room for what the coordinator says, until there is."""

    full = False

    def settle(self, run: str, accepted_round: int, open_round: int, open_attempt: int) -> Settlement:
        self._check()
        return super().settle(run, accepted_round, open_round, open_attempt)

    def close_round(self, run: str, round_: int, *, accepted: bool) -> None:
        self._check()
        super().close_round(run, round_, accepted=accepted)

    def _check(self) -> None:
        if self.full:
            raise StoreError("the disk is full", where="store.db", full=True)


def test_a_word_that_cannot_be_stored_is_taken_when_it_comes_again(
    tmp_path: Path, ditto: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = FullStore(tmp_path / "store.db")
        place = Place(store, BlobStore(tmp_path / "fetched"), BlobStore(tmp_path / "offered"))
        async with (
            scene(tmp_path, ditto) as (broker, coordinator),
            agent(broker, tmp_path / "device", place=place) as one,
        ):
            first = await coordinator.work(coordinator.task())
            store.full = True
            coordinator.say(Commit("run", 1, (DEVICE,)))
            await until(lambda: "disk is full" in caplog.text)
            assert one.service.state.standing("run") == Standing(-1, (1, 0))
            coordinator.say(coordinator.task(round_=2, accepted=1))
            failed = await coordinator.hear(Failed)
            assert (failed.round, failed.code) == (2, "StoreError")
            assert one.service.state.standing("run") == Standing(-1, (1, 0))
            store.full = False
            following = await coordinator.work(coordinator.task(round_=2, attempt=1, accepted=1))
            assert store.keep("run").round == 1
            assert following.kept != first.kept
            assert one.serving is not None
            assert not one.serving.done()

    play(scenario())


_FULL = """
import os, sys
from pathlib import Path
from device_agent.checkpoint import Checkpoint
from device_agent.interpreter import Halfway
from device_agent.place import Place
from edgepfl.errors import StoreError

state = Path(sys.argv[1]) / "state"
place = Place.open(state)
place.store.claim("pi-07")
place.store.commit_pending("run", 1, 0, keep=b"k" * 50_000, report=b"")
bundle = place.fetched.put(b"b" * 100_000).sha256
filler = os.open(state.parent / "filler", os.O_WRONLY | os.O_CREAT)
for size in (4096, 1):
    try:
        while True:
            os.write(filler, bytes(size))
    except OSError:
        pass
halfway = Checkpoint(Halfway(1, {}, {}), 0.0, 0.0, {}, b"m" * 100_000)
refused = 0
for change in (
    lambda: place.store.commit_pending("run", 2, 0, keep=b"k" * 100_000, report=b""),
    lambda: place.store.close_round("run", 1, accepted=True),
    lambda: place.store.settle("run", 1, 2, 0),
    lambda: place.store.next_session(),
    lambda: place.offered.put(b"u" * 100_000),
    lambda: place.checkpoint.save("key", halfway),
):
    try:
        change()
    except StoreError as error:
        assert error.full and "ree some space" in error.remedy, error
        refused += 1
assert refused == 6, refused
place.store.close()
place = Place.open(state)
assert place.store.standings() == {"run": (-1, (1, 0))}
assert place.fetched.has(bundle)
assert place.next_session() == 1  # what can be had again makes room
assert not place.fetched.has(bundle)
place.durably(lambda: place.store.close_round("run", 1, accepted=True))
assert place.store.keep("run") == (1, b"k" * 50_000)
place.store.close()
print("well")
"""


def test_a_disk_that_is_really_full_loses_nothing(tmp_path: Path) -> None:
    words = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    outcome = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", words, "sh", tmp_path, sys.executable, _FULL],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    if "unshare" in outcome.stderr or "mount" in outcome.stderr:
        absent("a private tmpfs", "allow user namespaces")
    assert outcome.stdout == "well\n", outcome.stderr
