"""Whole runs over the bus, with real messages and real uploads."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from _scripted import (
    config,
    coordinating,
    drained,
    finished,
    hands,
    honest_fleet,
    play,
    ref_of,
    serving,
    told,
    upload_of,
    watched,
)

from coordinator import pieces, screening, service, updater
from coordinator.pieces import Manifest
from coordinator.screen import screen
from edgepfl import codec
from edgepfl.bundle import Bundle, pack, unpack
from edgepfl.bus.blobs import BlobStore
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.plan import Plan, Role
from edgepfl.tree import Trees
from edgepfl.wire import Commit, Failed, Need, Task

pytestmark = pytest.mark.usefixtures("impatient")


def kept(state: Path, digest: str) -> Trees:
    """The tensors of a stored state."""
    blobs = BlobStore(state / "private")
    [shard] = pieces.decode(blobs.read(digest), Manifest, "state").shards
    return updater.numpy_of(pieces.take(blobs, shard))


async def _run(bundle: Bundle, state: Path, *, times: int = 1) -> tuple[str, tuple[list[object], ...], list[int]]:
    """One run to its end: the final digest, what each device saw, and the bytes out of each round."""
    broker = LoopbackBroker()
    devices = honest_fleet(broker, bundle, times=times)
    async with coordinating(broker, state) as service, serving(*devices):
        run = service.start_run(config(), pack(bundle))
        status = await finished(service, run)
        assert (status.status, status.round, status.why) == ("done", 3, "")
        results = [(result.round, result.device) for result in service.journal.results(run)]
        assert results == [(number, name) for number in (1, 2, 3) for name in ("ant", "bee", "cat")]
        costs = [cost.bytes_out for cost in service.journal.costs(run).values()]
        return status.state_sha256, tuple(list(device.seen) for device in devices), costs


def test_the_model_is_the_one_computed_by_hand(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        digest, seen, _ = await _run(small, tmp_path / "state")
        tasks = [message for message in seen[0] if isinstance(message, Task)]
        assert [(task.round, task.final, task.steps) for task in tasks] == [
            (1, False, 10),
            (2, False, 10),
            (3, True, 0),
        ]
        state = kept(tmp_path / "state", digest)["w"]
        specs = {name: slot.tensors for name, slot in small.plan.by_role(Role.UP).items()}
        w = small.model.map(lambda array: array.astype(np.float64))
        for task in tasks[:2]:
            uploads = [codec.decode(upload_of(small.plan, task, name), specs) for name in ("ant", "bee", "cat")]
            w = w + sum((upload["delta"] for upload in uploads[1:]), start=uploads[0]["delta"]) / 3
        for name, expected in w.items():
            np.testing.assert_allclose(state[name], expected, rtol=0, atol=1e-6)

    play(scenario())


def test_everybody_is_told_whose_reports_count(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        _, seen, _ = await _run(small, tmp_path / "state")
        for messages in seen:
            commits = [(m.round, m.accepted) for m in messages if isinstance(m, Commit)]
            assert commits == [(number, ("ant", "bee", "cat")) for number in (1, 2, 3)]
            members = [m.cohort for m in messages if isinstance(m, Task)]
            assert [[member.accepted_round for member in cohort] for cohort in members] == [[-1] * 3, [1] * 3, [2] * 3]

    play(scenario())


def test_an_upload_in_chunks(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        digest, _, costs = await _run(wide, tmp_path / "state")
        private = {path.name for path in (tmp_path / "state" / "private").iterdir()}
        assert len(private) == 2  # the state and where its tensors are: no upload outlives its round
        assert digest in private
        assert len(costs) == 3
        assert max(costs) < 64 << 10  # what goes out are messages: the bytes of weights come in

    play(scenario())


def test_reports_sent_many_times_count_once(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        looked: list[str] = []

        def look(data: bytes, plan: Plan, *, device: str, max_norm: float, words: str) -> Trees:
            looked.append(device)
            return screen(data, plan, device=device, max_norm=max_norm, words=words)

        once, _, _ = await _run(small, tmp_path / "once")
        monkeypatch.setattr(screening, "screen", look)
        often, _, _ = await _run(small, tmp_path / "often", times=5)
        assert once == often
        assert len(looked) == 3 * 2  # each upload once, on arrival

    play(scenario())


def test_a_device_that_always_fails_is_left_out_as_long_as_others_can_do(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path / "state") as service, hands(broker, "ant", "bee", "cat") as three:
            await drained(service, broker)
            run = service.start_run(config(goal=3, minimum=2), pack(small))
            first = await told(three)
            for hand in three[:2]:  # a round needs two, and only one is left
                hand.say(Failed(hand.name, 1, run, 1, 0, "data", "it is gone"))
            await watched(service, run, lambda status: status.waiting.count("it is gone") == 2)
            three[2].say(three[2].report(first, ref_of(upload_of(small.plan, first, "cat"))))
            again = await three[2].next(Task)
            assert again.attempt == 1
            assert [member.device for member in again.cohort] == ["ant", "bee", "cat"]  # too few without them

    play(scenario())


def test_a_device_that_failed_gives_way_to_a_spare_one(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        names = ("ant", "bee", "cat")
        async with coordinating(broker, tmp_path / "state") as service, hands(broker, *names) as three:
            await drained(service, broker)
            run = service.start_run(config(goal=2, minimum=2, gather=1e-6), pack(small))
            first = await three[0].next(Task)
            chosen = [member.device for member in first.cohort]
            bad = three[names.index(chosen[0])]
            bad.say(Failed(bad.name, 1, run, 1, 0, "data", "it is gone"))
            good = three[names.index(chosen[1])]
            good.say(good.report(first, ref_of(upload_of(small.plan, first, good.name))))
            again = await good.next(Task)
            while again.attempt == 0:
                again = await good.next(Task)
            assert [member.device for member in again.cohort] == [name for name in names if name != bad.name]

    play(scenario())


def test_what_devices_fetch_holds_no_golden_vectors(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path / "state") as service, hands(broker, "ant", "bee", "cat") as three:
            service.start_run(config(), pack(small))
            task = await told(three)
            fetched = unpack(service._desk.vault.offered.read(task.bundle.sha256))
            assert small.golden
            assert not fetched.golden
            assert fetched.graphs == small.graphs

    play(scenario())


def test_a_long_upload_is_asked_for_without_waiting_for_a_tick(
    long: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next window is due long before the service next looks at leases, which here is never."""
    monkeypatch.setattr(service, "TICK", 1e6)

    async def scenario() -> None:
        broker = LoopbackBroker()
        devices = honest_fleet(broker, long, "ant")
        async with coordinating(broker, tmp_path, time.monotonic) as here, serving(*devices):
            run = here.start_run(config(rounds=1, goal=1, minimum=1), pack(long))
            status = await finished(here, run)
            assert (status.status, status.round) == ("done", 2)
            asked = [message for message in devices[0].seen if isinstance(message, Need)]
            assert len(asked) > 1  # one window was not enough

    play(scenario())
