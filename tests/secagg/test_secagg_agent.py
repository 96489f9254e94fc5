"""A device's part between bus, store and machine: what a power cut must not undo."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from _exchange import names, seeded

from device_agent.events import TaskId
from device_agent.interpreter import Stopped
from device_agent.secagg import Concealment
from device_agent.store import Store
from device_agent.work import Product
from edgepfl.errors import StoreError, WireError
from edgepfl.secagg import messages
from edgepfl.secagg.masks import context
from edgepfl.secagg.messages import Body, Dealt, Keys, Revealed, Said
from edgepfl.secagg.server import Close, Heard, Seats, Server, advance, due
from edgepfl.secagg.terms import Terms
from edgepfl.wire import BlobRef, Member, SecAgg, Task

EVERYONE = names(4)
TERMS = Terms(64, 30, 8.0, 100, ("delta",))
PRODUCT = Product(b"", "", np.arange(5, dtype="<u8").tobytes(), None, 1, {}, {})


def task_of(round_: int, attempt: int = 0, terms: Terms | None = TERMS) -> Task:
    ref = BlobRef("0" * 64, 1)
    members = tuple(Member(name, -1) for name in EVERYONE)
    return Task(
        run="run-1",
        round=round_,
        attempt=attempt,
        cohort=members,
        bundle=ref,
        download=ref,
        hyper={},
        steps=1,
        seed=1,
        evaluate=False,
        tune_steps=0,
        final=False,
        deadline=9.0,
        heartbeat=1.0,
        secagg=terms,
    )


class Bench:
    """Devices at one table, each with a store of its own, and a server that hears them."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder, self.pool = folder, pool
        self.server = Server(1, 0, 5, 3)
        self.said: list[tuple[str, Said]] = []
        self.failed: list[tuple[TaskId, str]] = []
        self.stores = {name: Store(folder / name / "store.db") for name in EVERYONE}
        self.devices = {name: self.switch_on(name) for name in EVERYONE}

    def switch_on(self, name: str, seed: int = 0) -> Concealment:
        return Concealment(
            name,
            self.stores[name],
            self.pool,
            self.hear,
            lambda task, why: self.failed.append((task, why)),
            seeded(seed + EVERYONE.index(name)),
        )

    def hear(self, message: SecAgg) -> None:
        said = messages.said(message.body, where="test")
        self.said.append((message.device, said))
        self.server, _ = advance(self.server, Heard(message.device, said))

    def tell(self, name: str) -> None:
        body = due(self.server, name)
        assert body is not None
        self.send(name, body)

    def send(self, name: str, body: Body) -> None:
        self.devices[name].heard(SecAgg(name, "run-1", 1, 0, messages.encode(body)))

    def exchange(self) -> None:
        """Up to where uploads can be masked."""
        for device in self.devices.values():
            device.take_up(task_of(1))
        for _ in range(2):
            self.server, _ = advance(self.server, Seats(frozenset(EVERYONE)))
            for name in EVERYONE:
                self.tell(name)

    async def mask(self) -> dict[str, bytes]:
        done = {name: await self.devices[name].conceal(task_of(1), PRODUCT) for name in EVERYONE}
        return {name: product.upload or b"" for name, product in done.items()}

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


def play(folder: Path, scenario: Any) -> None:  # noqa: ANN401  a coroutine function
    async def played() -> None:
        with ThreadPoolExecutor(1) as pool:
            bench = Bench(folder, pool)
            try:
                work: Coroutine[Any, Any, None] = scenario(bench)
                await asyncio.wait_for(work, 60)
            finally:
                bench.close()

    asyncio.run(played())


def test_what_is_opened_is_noted_before_it_is_said_and_outlives_the_power(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.exchange()
        uploads = await bench.mask()
        assert all(upload != PRODUCT.upload and len(upload) == 40 for upload in uploads.values())
        bench.server, _ = advance(bench.server, Close(EVERYONE))
        me = EVERYONE[0]
        noted: list[int | None] = []

        def hear(message: SecAgg) -> None:
            noted.append(bench.stores[me].fact("opened run-1"))
            bench.hear(message)

        bench.devices[me]._send = hear
        bench.tell(me)
        assert noted == [1]
        assert isinstance(bench.said[-1][1], Revealed)
        bench.tell(me)
        assert bench.said[-1] == bench.said[-2]
        bench.devices[me] = bench.switch_on(me, seed=9)  # the power was away
        count = len(bench.said)
        bench.tell(me)
        assert len(bench.said) == count  # it has no secrets any more
        bench.devices[me].take_up(task_of(1, 1))
        assert len(bench.said) == count
        assert bench.failed[-1][0] == TaskId("run-1", 1, 1)
        assert "helped to open the sum of round 1" in bench.failed[-1][1]
        bench.devices[me].take_up(task_of(2))
        assert isinstance(bench.said[-1][1], Keys)

    play(tmp_path, scenario)


def test_where_it_cannot_be_noted_nothing_is_said(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.exchange()
        await bench.mask()
        bench.server, _ = advance(bench.server, Close(EVERYONE))
        one, two = EVERYONE[:2]
        count = len(bench.said)
        bench.stores[one].note = full  # type: ignore[method-assign]  # a disk that is full
        bench.tell(one)
        assert len(bench.said) == count
        bench.stores[two].close()
        with pytest.raises(StoreError, match="closed"):
            bench.tell(two)
        assert len(bench.said) == count

    def full(name: str, value: int) -> None:  # noqa: ARG001  as the store has it
        raise StoreError("no room", full=True)

    play(tmp_path, scenario)


def test_a_task_that_comes_again_is_answered_with_what_was_said_last(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.exchange()
        me = bench.devices[EVERYONE[0]]
        me.take_up(task_of(1))
        name, said = bench.said[-1]
        assert name == EVERYONE[0]
        assert isinstance(said, Dealt)
        me.take_up(None)  # no task at hand: the report waits, and what opens it stays
        await bench.mask()
        me.take_up(task_of(1, 1))
        assert bench.said[-1][1] != bench.said[0][1]
        assert isinstance(bench.said[-1][1], Keys)  # fresh ones
        me.take_up(task_of(2, terms=None))
        with pytest.raises(Stopped):
            await me.conceal(task_of(1, 1), PRODUCT)

    play(tmp_path, scenario)


def test_who_waits_for_shares_ends_with_its_task(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        me = bench.devices[EVERYONE[0]]
        assert await me.conceal(task_of(1, terms=None), PRODUCT) is PRODUCT
        nothing = msgspec.structs.replace(task_of(1))
        ends: list[Callable[[], None]] = [lambda: me.forget(TaskId("run-1", 1, 0)), me.forget]
        ends.append(lambda: me.take_up(task_of(2)))
        for end in ends:
            me.take_up(nothing)
            waiting = asyncio.get_running_loop().create_task(me.conceal(nothing, PRODUCT))
            await asyncio.sleep(0)
            me.forget(TaskId("run-1", 9, 0))  # another's end
            await asyncio.sleep(0)
            assert not waiting.done()
            end()
            with pytest.raises(Stopped):
                await waiting

    play(tmp_path, scenario)


def test_messages_of_others_and_of_other_attempts_mean_nothing(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.exchange()
        me, count = bench.devices[EVERYONE[0]], len(bench.said)
        body = messages.encode(messages.Ask())
        for run, round_, attempt in (("run-2", 1, 0), ("run-1", 2, 0), ("run-1", 1, 1)):
            me.heard(SecAgg(EVERYONE[0], run, round_, attempt, body))
        assert len(bench.said) == count
        with pytest.raises(WireError, match="it is for"):
            me.heard(SecAgg(EVERYONE[1], "run-1", 1, 0, body))
        with pytest.raises(WireError):
            me.heard(SecAgg(EVERYONE[0], "run-1", 1, 0, b"nothing"))

    play(tmp_path, scenario)


def test_a_refusal_fails_the_task(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.exchange()
        bench.send(EVERYONE[0], messages.Unmask(EVERYONE[1:], ()))
        assert bench.failed == [(TaskId("run-1", 1, 0), "it is asked to open a sum that its upload is not in")]
        assert context("run-1", 1, 0)

    play(tmp_path, scenario)


def test_an_agent_without_secure_aggregation_never_imports_cryptography() -> None:
    program = "import sys, device_agent.cli, device_agent.service; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
