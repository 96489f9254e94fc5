"""The control socket of a real coordinator: people, scripts, and whatever else connects."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from _scripted import config, coordinating, hands, honest_fleet, play, serving, until

from coordinator import asking, control
from coordinator.asking import SOCKET, Answer, Request
from coordinator.clusters import describe
from coordinator.fused import clusters_in
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import RunError
from exporters import zoo
from exporters.build import build
from exporters.fitting import fitted

pytestmark = pytest.mark.usefixtures("impatient")


@asynccontextmanager
async def controlled(broker: LoopbackBroker, state: Path) -> AsyncIterator[Coordinator]:
    async with coordinating(broker, state) as service, control.serve(service, state):
        yield service


async def asked(state: Path, request: Request) -> list[Answer]:
    return [answer async for answer in asking.ask(state, request)]


async def status_of(state: Path, run: str = "") -> RunStatus:
    [answer] = await asked(state, Request("status", run=run))
    assert isinstance(answer.ok, RunStatus)
    return answer.ok


async def raw(state: Path, data: bytes) -> bytes:
    """What a connection is answered that sends these bytes and nothing more."""
    reader, writer = await asyncio.open_unix_connection(state / SOCKET)
    writer.write(data)
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()


def saved(bundle: Bundle, folder: Path) -> str:
    path = folder / "a.bundle"
    path.write_bytes(pack(bundle))
    return str(path)


def test_a_run_is_started_watched_and_done(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with controlled(broker, state), serving(*honest_fleet(broker, small)):
            [started] = await asked(state, Request("start", bundle=saved(small, tmp_path), config=config()))
            run = str(started.ok)
            first, second = await asyncio.gather(*(asked(state, Request("watch", run=run)) for _ in range(2)))
            for seen in (first, second):
                rounds = [answer.ok.round for answer in seen if isinstance(answer.ok, RunStatus)]
                assert rounds == sorted(rounds)
                assert rounds[-1] == 3
            status = await status_of(state)
            assert (status.run, status.status, status.here) == (run, "done", ("ant", "bee", "cat"))
            assert [(device.name, device.state) for device in status.devices] == [(n, "present") for n in status.here]
            assert first[-1].ok == second[-1].ok == msgspec.structs.replace(status, devices=())
            assert len(await asked(state, Request("watch"))) == 1  # over already

    play(scenario())


def test_a_run_is_stopped(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with controlled(broker, state):
            [started] = await asked(state, Request("start", bundle=saved(small, tmp_path), config=config()))
            watching = asyncio.ensure_future(asked(state, Request("watch")))
            assert (await status_of(state)).waiting == "0 of 3 devices are here, 3 more needed"
            [stopped] = await asked(state, Request("stop"))
            assert isinstance(stopped.ok, RunStatus)
            assert (stopped.ok.run, stopped.ok.status) == (started.ok, "stopped")
            assert (await watching)[-1].ok == stopped.ok
            with pytest.raises(RunError, match="not active"):
                await asked(state, Request("stop"))

    play(scenario())


UNKNOWN = {
    "status": Request("status", run="nobody"),
    "watch": Request("watch", run="nobody"),
    "stop": Request("stop", run="nobody"),
    "clusters": Request("clusters", run="nobody"),
    "a verb": Request("dance"),
    "nothing to start": Request("start"),
    "a bundle that is not there": Request("start", bundle="/nowhere/a.bundle", config=config()),
    "the newest of none": Request("watch"),
}


@pytest.mark.parametrize("request_", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_cannot_be_is_said(request_: Request, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with controlled(LoopbackBroker(), tmp_path):
            with pytest.raises(RunError) as caught:
                await asked(tmp_path, request_)
            assert len(str(caught.value)) > 10
            with pytest.raises(RunError, match="there is no such run"):  # and it goes on answering
                await status_of(tmp_path)

    play(scenario())


GARBAGE = {
    "nothing": b"",
    "an empty line": b"\n",
    "no JSON": b"status\n",
    "half a line": b'{"do": "sta',
    "another shape": b'["status"]\n',
    "an unknown field": b'{"do": "status", "force": true}\n',
    "no text": b"\xff\xfe\x00\n",
    "a config that cannot be": b'{"do": "start", "bundle": "/dev/null", "config": {"rounds": 0}}\n',
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_answered_and_forgotten(data: bytes, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with controlled(LoopbackBroker(), tmp_path):
            answer = msgspec.json.decode(await raw(tmp_path, data), type=Answer)
            assert answer.error
            again = await raw(tmp_path, b'{"do": "status"}\n')
            assert b"there is no such run" in again

    play(scenario())


def test_a_line_without_end_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with controlled(LoopbackBroker(), tmp_path):
            with contextlib.suppress(ConnectionError):  # the rest is not even read
                assert b"error" in await raw(tmp_path, b"x" * (asking.LINE_LIMIT + 100_000))
            with pytest.raises(RunError, match=r"hung up|chunk"):
                await asked(tmp_path, Request("x" * (asking.LINE_LIMIT + 100_000)))
            assert b"there is no such run" in await raw(tmp_path, b'{"do": "status"}\n')

    play(scenario())


def test_a_watcher_that_hangs_up_is_not_waited_for(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, state = LoopbackBroker(), tmp_path / "state"
        async with controlled(broker, state) as service:
            service.start_run(config(), pack(small))
            before = asyncio.all_tasks()
            connections = [await asyncio.open_unix_connection(state / SOCKET) for _ in range(5)]
            for reader, writer in connections:
                writer.write(b'{"do": "watch"}\n')
                assert b"3 more needed" in await reader.readline()
            watching = asyncio.all_tasks() - before
            assert len(watching) >= 5
            for _, writer in connections:
                writer.close()
            await asyncio.wait(watching)  # though nothing happened that they could be told of
            run = (await status_of(state)).run
            async with hands(broker, "ant"):
                await until(service, run, lambda: service.status(run).here == ("ant",))

    play(scenario())


def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = tmp_path / "state"
        async with controlled(LoopbackBroker(), state):
            assert stat.S_IMODE((state / SOCKET).stat().st_mode) == 0o600
            assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert not (state / SOCKET).exists()
        with pytest.raises(RunError, match="no coordinator answers") as caught:
            await status_of(state)
        assert "edgepfl coordinator" in caught.value.remedy
        with pytest.raises(RunError, match="no coordinator's state"):
            await status_of(tmp_path / "nowhere")

    play(scenario())


def test_a_path_longer_than_a_sockets(tmp_path: Path) -> None:
    async def scenario() -> None:
        state = tmp_path / ("a" * 100) / ("b" * 100)
        async with controlled(LoopbackBroker(), state):
            with pytest.raises(RunError, match="there is no such run"):
                await status_of(state)
            assert (state / SOCKET).is_socket()

    play(scenario())


def test_a_socket_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / SOCKET).write_bytes(b"")
        async with controlled(LoopbackBroker(), tmp_path):
            with pytest.raises(RunError, match="there is no such run"):
                await status_of(tmp_path)
            assert (tmp_path / SOCKET).is_socket()

    play(scenario())


def test_the_clusters_of_a_run_are_those_of_its_last_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        fused = build(FPFC(), fitted(FPFC(), zoo.mlp(inputs=4, hidden=3, classes=2, batch=4)))
        async with controlled(broker, tmp_path) as service, serving(*honest_fleet(broker, fused)):
            [started] = await asked(tmp_path, Request("start", bundle=saved(fused, tmp_path), config=config()))
            await asked(tmp_path, Request("watch"))
            [answer] = await asked(tmp_path, Request("clusters"))
            assert answer.clusters is not None
            assert sorted(name for group in answer.clusters.groups for name in group) == ["ant", "bee", "cat"]
            assert sum(count for _, count in answer.clusters.histogram) == 3  # pairs
            assert "clusters (pairs with |theta|" in describe(answer.clusters)
            row = service.journal.run(str(started.ok))
            assert row is not None
            assert answer == Answer(clusters=clusters_in(service.journal, service.vault, row.id))

    play(scenario())


def test_a_run_of_another_algorithm_has_no_clusters(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with controlled(broker, tmp_path):
            await asked(tmp_path, Request("start", bundle=saved(small, tmp_path), config=config()))
            with pytest.raises(RunError, match="knows no clusters"):
                await asked(tmp_path, Request("clusters"))
            assert (await status_of(tmp_path)).status == "running"

    play(scenario())
