"""Uploads that are wrong, late, equal or never come: the device loses its seat, and the round goes on without it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from _scripted import (
    Clock,
    Hand,
    config,
    coordinating,
    drained,
    hands,
    play,
    ref_of,
    seat_of,
    told,
    until,
    upload_of,
    watched,
)

from coordinator import updater
from coordinator.checkpoint import state_in
from coordinator.rounds import State
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.chunks import CHUNK
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.tree import Tree, Trees
from edgepfl.wire import BlobRef, Cancel, Commit, Need, Report, Task

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("ant", "bee", "cat")


def refit(bundle: Bundle, change: Callable[[Tree], Tree]) -> Callable[[bytes], BlobRef]:
    """An upload whose delta was changed."""
    specs = {"delta": bundle.plan.model}

    def changed(data: bytes) -> BlobRef:
        trees: Trees = {"delta": change(codec.decode(data, specs)["delta"])}
        return ref_of(codec.encode(trees))

    return changed


def with_one(value: float) -> Callable[[Tree], Tree]:
    def change(tree: Tree) -> Tree:
        name = next(iter(tree))
        array = tree[name].copy()
        array.ravel()[0] = value
        return tree | Tree({name: array})

    return change


def lie(data: bytes) -> BlobRef:
    """Right in each chunk, wrong as a whole."""
    return BlobRef("ab" * 32, len(data), chunks=ref_of(data, inline=False).chunks)


WRONG: dict[str, tuple[Callable[[Bundle], Callable[[bytes], BlobRef | None]], str]] = {
    "not finite": (lambda bundle: refit(bundle, with_one(np.nan)), "is not finite"),
    "enormous": (lambda bundle: refit(bundle, with_one(1e7)), "has norm 1e+07"),
    "misshapen": (lambda bundle: refit(bundle, lambda tree: tree.map(lambda a: a[..., :1])), "declared float32"),
    "a tensor missing": (lambda bundle: refit(bundle, lambda tree: tree.like(list(tree)[1:])), "is missing"),
    "no tensors at all": (lambda _: lambda data: ref_of(b"x" * len(data)), "not safetensors"),
    "no upload": (lambda _: lambda _: None, "it has no upload"),
    "far too long": (lambda _: lambda _: BlobRef("ab" * 32, 200 << 20, chunks=b"d" * 16 * 3200), "at most"),
    "a size without digests": (lambda _: lambda _: BlobRef("ab" * 32, 100), "digests for 1 chunks"),
    "other bytes than its digest": (lambda _: lambda data: BlobRef("ab" * 32, len(data), data), "another digest"),
    "chunks of another blob": (lambda _: lie, "the whole has not"),
}


async def send_right(bundle: Bundle, hand: Hand, task: Task) -> Report:
    report = hand.report(task, ref_of(upload_of(bundle.plan, task, hand.name)))
    hand.say(report)
    return report


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_upload_costs_its_sender_the_seat_and_nobody_else_anything(
    make: Callable[[Bundle], Callable[[bytes], BlobRef | None]], words: str, small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, *NAMES) as devices:
            run = service.start_run(config(minimum=2), pack(small))
            task = await told(devices)
            data = upload_of(small.plan, task, "bee")
            devices[1].say(devices[1].report(task, make(small)(data)))
            devices[1].chunk(data, 0)  # of no use but to the liar, whose digest nobody else has
            topic = f"edgepfl/1/home/up/bee/blob/{'ab' * 8}.0"
            devices[1].bus.publish(topic, data)
            await until(service, run, lambda: seat_of(service, "bee").state is State.FAILED)
            assert words in seat_of(service, "bee").why
            for hand in (devices[0], devices[2]):
                await send_right(small, hand, task)
            status = await watched(service, run, lambda status: status.round == 1)
            assert [result.device for result in service.journal.results(run)] == ["ant", "cat"]
            commit = await devices[1].next(Commit)
            assert (commit.round, commit.accepted) == (1, ("ant", "cat"))
            stored = {path.name for path in (tmp_path / "private").iterdir()}
            assert stored == service.journal.checkpoint(run).blobs
            assert status.state_sha256 in stored

    play(scenario())


def test_reports_of_no_examples_do_not_count(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1), pack(small))
            task = await told([ant])
            ant.say(ant.report(task, ref_of(upload_of(small.plan, task, "ant")), examples=0))
            again = await ant.next(Task)
            assert (again.round, again.attempt) == (1, 1)  # a mean over weights of 0 is no model
            assert service.status(run).round == 0

    play(scenario())


def test_an_upload_that_was_promised_and_never_comes(wide: Bundle, tmp_path: Path) -> None:
    """Repeating the promise does not help: the lease runs out, the task comes again, then the seat is given up."""

    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as devices:
            ant, bee = devices
            run = service.start_run(config(goal=2, minimum=1), pack(wide))
            task = await told(devices)
            data = {hand: upload_of(wide.plan, task, hand.name) for hand in devices}
            for hand in devices:
                hand.say(hand.report(task, ref_of(data[hand])))
                assert (await hand.next(Need)).ranges == ((0, 2),)
            for index in range(2):
                bee.chunk(data[bee], index)
            await until(service, run, lambda: seat_of(service, "bee").state is State.REPORTED)
            for nudged in (True, False):
                clock.now += 10.1
                if nudged:
                    assert (await ant.next(Task)).round == 1
                    ant.say(ant.report(task, ref_of(data[ant])))
            await watched(service, run, lambda status: status.round == 1)
            assert [result.device for result in service.journal.results(run)] == ["bee"]
            assert not service._uploads._coming
            assert not list((tmp_path / "private").glob("*.part"))

    play(scenario())


def test_a_slow_upload_lives_as_long_as_its_chunks_come(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1), pack(wide))
            task = await told([ant])
            data = upload_of(wide.plan, task, "ant")
            ant.say(ant.report(task, ref_of(data)))
            await ant.next(Need)
            clock.now += 9
            ant.chunk(data, 0)
            await until(service, run, lambda: seat_of(service, "ant").until == clock.now + 10)
            lease, clock.now = clock.now + 10, clock.now + 4
            ant.chunk(data, 0)  # again, and wrong ones: no progress
            ant.bus.publish(f"edgepfl/1/home/up/ant/blob/{hashlib.sha256(data).hexdigest()[:16]}.1", b"wrong")
            await drained(service, broker)
            assert seat_of(service, "ant").until == lease
            ant.chunk(data, 1)
            await watched(service, run, lambda status: status.round == 1)

    play(scenario())


def test_equal_uploads_of_two_devices_both_count(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, *NAMES) as devices:
            run = service.start_run(config(), pack(wide))
            task = await told(devices)
            data = upload_of(wide.plan, task, "the same for all")
            ant, bee, cat = devices
            ant.say(ant.report(task, ref_of(data)))
            await ant.next(Need)
            clock.now += 1e-3  # so that the lease shows it
            bee.say(bee.report(task, ref_of(data)))
            await until(service, run, lambda: len(service._uploads._coming[ref_of(data).sha256[:16]].reports) == 2)
            bee.chunk(data, 0)
            ant.chunk(data, 1)
            await until(service, run, lambda: seat_of(service, "bee").state is State.REPORTED)
            cat.say(cat.report(task, ref_of(data)))  # it is here already
            await watched(service, run, lambda status: status.round == 1)
            assert [result.device for result in service.journal.results(run)] == list(NAMES)
            w = updater.numpy_of(state_in(service.vault.private, service.journal.checkpoint(run)))["w"]
            delta = codec.decode(data, {"delta": wide.plan.model})["delta"]
            for name, tensor in w.items():
                np.testing.assert_allclose(tensor, wide.model[name] + delta[name], rtol=0, atol=1e-6)

    play(scenario())


def test_what_is_late_is_given_up_with_its_round(wide: Bundle, tmp_path: Path) -> None:
    """At the deadline a half-sent upload goes, and its first chunk cannot poison the same blob later."""

    async def scenario() -> None:
        broker, clock = LoopbackBroker(), Clock()
        async with coordinating(broker, tmp_path, clock) as service, hands(broker, "ant", "bee") as devices:
            ant, bee = devices
            run = service.start_run(config(goal=2, minimum=1, lease=1e6), pack(wide))
            task = await told(devices)
            late, data = (upload_of(wide.plan, task, hand.name) for hand in devices)
            ant.say(ant.report(task, ref_of(late)))
            await ant.next(Need)
            ant.chunk(late, 0)
            bee.say(bee.report(task, ref_of(data)))
            await bee.next(Need)
            for index in range(2):
                bee.chunk(data, index)
            await until(service, run, lambda: seat_of(service, "bee").state is State.REPORTED)
            clock.now += 1000
            assert (await ant.next(Cancel)).round == 1
            assert (await ant.next(Commit)).accepted == ("bee",)
            ant.chunk(late, 1)
            second = await told([ant])
            ant.say(ant.report(second, ref_of(late)))  # by chance the same bytes
            need = await ant.next(Need)
            assert need.ranges == ((0, 2),)
            for index in range(2):
                ant.chunk(late, index)
            await until(service, run, lambda: seat_of(service, "ant").state is State.REPORTED)

    play(scenario())


def test_a_device_that_changes_its_mind_holds_one_transfer(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant") as [ant]:
            run = service.start_run(config(goal=1, minimum=1), pack(wide))
            task = await told([ant])
            data = upload_of(wide.plan, task, "ant")
            for k in range(50):
                ant.say(ant.report(task, ref_of(data[:-4] + k.to_bytes(4, "little"))))
            ant.say(ant.report(task, ref_of(data)))
            while (need := await ant.next(Need)).sha256 != ref_of(data).sha256:
                pass
            assert need.ranges == ((0, 2),)
            assert len(service._uploads._coming) == 1
            for index in range(2):
                ant.chunk(data, index)
            await watched(service, run, lambda status: status.round == 1)

    play(scenario())


def test_a_chunk_is_a_whole_one_or_nothing(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, "ant", "bee") as [ant, bee]:
            run = service.start_run(config(goal=2, minimum=2), pack(wide))
            task = await told([ant, bee])
            data = upload_of(wide.plan, task, "ant")
            ant.say(ant.report(task, ref_of(data)))
            await ant.next(Need)
            for index in range(2):
                bee.bus.publish(f"edgepfl/1/home/up/bee/blob/{ref_of(data).sha256[:16]}.{index}", bytes(CHUNK))
            bee.say(msgspec.structs.replace(bee.report(task, ref_of(data)), attempt=7))
            ant.chunk(data, 0)
            ant.chunk(data, 1)
            await until(service, run, lambda: seat_of(service, "ant").state is State.REPORTED)
            assert seat_of(service, "bee").state is State.WORKING
            await asyncio.sleep(0)

    play(scenario())
