"""Runs whose uploads are encoded: the server gets what was decoded, and lies cost their sender the seat."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from _plans import bundle_of
from _scripted import (
    Hand,
    config,
    coordinating,
    finished,
    hands,
    honest_fleet,
    play,
    ref_of,
    seat_of,
    serving,
    told,
    until,
    upload_of,
    watched,
)

from coordinator.checkpoint import state_in
from coordinator.rounds import State
from coordinator.service import Coordinator
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.coding import Coding
from edgepfl.errors import ConfigError
from edgepfl.plan import Role
from edgepfl.tree import Tree, Trees
from edgepfl.wire import Task

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("ant", "bee", "cat")
CODEC = "int8+zlib"


async def led(bundle: Bundle, folder: Path, codec: str, rounds: int = 2) -> str:
    """The digest of the last state of a run."""
    broker = LoopbackBroker()
    devices = honest_fleet(broker, bundle)
    async with coordinating(broker, folder) as service, serving(*devices):
        run = service.start_run(config(rounds=rounds, codec=codec), pack(bundle))
        status = await finished(service, run)
        assert (status.status, status.why) == ("done", "")
        return status.state_sha256


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcr", "fpfc"])
def test_without_loss_the_run_is_the_same(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name)
        plain = await led(bundle, tmp_path / "plain", "")
        assert await led(bundle, tmp_path / "packed", "sparse+zlib") == plain
        coarse = await led(bundle, tmp_path / "coarse", "int8")
        assert coarse == await led(bundle, tmp_path / "again", "int8") != plain

    play(scenario())


async def reported(service: Coordinator, bundle: Bundle, devices: tuple[Hand, ...], codec: str) -> tuple[str, Task]:
    """A run in whose first round all but the last device have reported."""
    run = service.start_run(config(rounds=1, minimum=2, codec=codec), pack(bundle))
    task = await told(devices)
    assert task.codec == codec
    for hand in devices[:-1]:
        hand.say(hand.report(task, ref_of(upload_of(bundle.plan, task, hand.name))))
    await until(service, run, lambda: all(seat_of(service, each.name).state is State.REPORTED for each in devices[:-1]))
    return run, task


def test_the_server_moves_by_what_was_decoded_also_after_a_restart(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with hands(broker, *NAMES) as devices:
            async with coordinating(broker, tmp_path) as service:
                for hand in devices:
                    hand.hello()
                run, task = await reported(service, small, devices, CODEC)
            async with coordinating(broker, tmp_path) as service:
                for hand in devices:
                    hand.hello()
                again = await devices[2].next(Task)
                data = upload_of(small.plan, again, "cat")
                devices[2].say(devices[2].report(again, ref_of(data)))
                await watched(service, run, lambda status: status.round == 1)
                after = state_in(service.vault.private, service.journal.checkpoint(run))["w"]
        uploads = [upload_of(small.plan, task, name) for name in NAMES]
        deltas = [Coding(CODEC, small.plan).decode(each)["delta"] for each in uploads]
        for name, before in small.model.items():
            mean = torch.stack([torch.from_numpy(delta[name]).double() for delta in deltas]).mean(0)
            torch.testing.assert_close(after[name], torch.from_numpy(before.copy()) + mean.float())

    play(scenario())


def amplified(coding: Coding, plain: Trees) -> bytes:
    """Few bytes, and an enormous model."""
    return coding.encode({slot: tree.map(lambda a: np.full_like(a, 1e7)) for slot, tree in plain.items()}, 1).data


def bomb(coding: Coding, plain: Trees) -> bytes:  # noqa: ARG001  all lies are called alike
    return zlib.compress(bytes(1 << 20), 9)[: coding.size.bytes]


def unscaled(coding: Coding, plain: Trees) -> bytes:
    data = zlib.decompress(coding.encode(plain, 1).data)
    return zlib.compress(struct.pack("<f", np.nan) + data[4:])


def too_long(coding: Coding, plain: Trees) -> bytes:  # noqa: ARG001  likewise
    return bytes(coding.size.bytes + 1)


def raw(coding: Coding, plain: Trees) -> bytes:
    return b"".join(np.asarray(a).tobytes() for tree in plain.values() for a in tree.values())[: coding.size.bytes]


LIES: dict[str, tuple[Callable[[Coding, Trees], bytes], str]] = {
    "of an enormous model": (amplified, "has norm"),
    "that unpacks to more than there can be": (bomb, "unpacks to more than"),
    "with a scale that is none": (unscaled, "a scale is negative or not finite"),
    "too long for its codec": (too_long, "are possible"),
    "that is not encoded": (raw, "not packed"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES.keys())
def test_an_upload_that_lies_costs_its_sender_the_seat(
    lie: Callable[[Coding, Trees], bytes], words: str, small: Bundle, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path) as service, hands(broker, *NAMES) as devices:
            run, task = await reported(service, small, devices, CODEC)
            coding = Coding(CODEC, small.plan)
            plain = {
                name: Tree({key: np.ones(spec.shape, spec.dtype) for key, spec in slot.tensors.items()})
                for name, slot in small.plan.by_role(Role.UP).items()
            }
            devices[2].say(devices[2].report(task, ref_of(lie(coding, plain))))
            await until(service, run, lambda: seat_of(service, "cat").state is State.FAILED)
            assert words in seat_of(service, "cat").why
            assert all(seat_of(service, name).state is State.REPORTED for name in NAMES[:2])

    play(scenario())


def test_a_run_with_a_codec_that_will_not_do_does_not_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path) as service:
            for name, codec, why in [
                ("fedavg", "int9", "no such part of a codec"),
                ("feddyn", "topk:0.1", "feddyn would make up for them"),
                ("fpfc", "threshold:1e-3+int8", "fpfc would make up for them"),
            ]:
                with pytest.raises(ConfigError, match=why):
                    service.start_run(config(codec=codec), pack(bundle_of(name)))
            assert service.journal.running() is None

    play(scenario())


def test_a_task_says_what_follows_the_upload_only_where_it_is_encoded(tmp_path: Path) -> None:
    async def scenario() -> None:
        for codec, count in (("", 0), ("int8", 2)):
            broker, bundle = LoopbackBroker(), bundle_of("feddc")
            async with coordinating(broker, tmp_path / f"{count}") as service, hands(broker, *NAMES) as devices:
                service.start_run(config(codec=codec), pack(bundle))
                task = await told(devices)
                assert (task.codec, len(task.amends)) == (codec, count)

    play(scenario())
