"""The coordinator's end of its control socket: see :mod:`coordinator.asking`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from pathlib import Path

import msgspec

from coordinator.asking import LINE_LIMIT, SOCKET, Answer, Request, request_of, socket_in
from coordinator.config import RunConfig
from coordinator.fused import clusters_in
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from edgepfl.errors import EdgepflError


@contextlib.asynccontextmanager
async def serve(coordinator: Coordinator, state: Path) -> AsyncIterator[None]:
    """Answer requests for as long as the context lasts."""
    with socket_in(state) as path:
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(_Handler(coordinator).handle, path, limit=LINE_LIMIT)
        (state / SOCKET).chmod(0o600)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)


class _Handler:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's one request; who hangs up needs no answer any more."""
        try:
            with contextlib.suppress(ConnectionError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = request_of(await reader.readline())
            async with contextlib.aclosing(self._answers(request, reader)) as answers:
                async for answer in answers:
                    writer.write(msgspec.json.encode(answer) + b"\n")
                    await writer.drain()
        except ConnectionError:
            raise
        except (EdgepflError, OSError, ValueError) as error:
            writer.write(msgspec.json.encode(Answer(error=str(error))) + b"\n")
            await writer.drain()

    async def _answers(self, request: Request, reader: asyncio.StreamReader) -> AsyncGenerator[Answer, None]:
        match request:
            case Request("start", config=None):
                yield Answer(error="a start needs a config")
            case Request("start", bundle=bundle, config=RunConfig() as config):
                yield Answer(self._coordinator.start_run(config, await asyncio.to_thread(Path(bundle).read_bytes)))
            case Request("stop", run=run):
                run = run or self._coordinator.status().run
                self._coordinator.stop_run(run)
                yield Answer(self._coordinator.status(run))
            case Request("status", run=run):
                yield Answer(self._coordinator.status(run))
            case Request("clusters", run=run):
                found = clusters_in(self._coordinator.journal, self._coordinator.vault, run)
                yield Answer(clusters=found)
            case Request("watch", run=run):
                watching = self._coordinator.watch(run or self._coordinator.status().run)
                async with contextlib.aclosing(watching) as statuses:
                    while (status := await _unless_closed(anext(statuses, None), reader)) is not None:
                        yield Answer(status)
            case _:
                yield Answer(error=f"there is no request {request.do!r}")


async def _unless_closed(status: Awaitable[RunStatus | None], reader: asyncio.StreamReader) -> RunStatus | None:
    """The next status, or None if the watcher hangs up first: there may be nothing to tell it for hours."""
    waiting = asyncio.ensure_future(status)
    closed = asyncio.ensure_future(reader.read())
    try:
        await asyncio.wait({waiting, closed}, return_when=asyncio.FIRST_COMPLETED)
        return await waiting if waiting.done() else None
    finally:
        for each in (waiting, closed):
            each.cancel()
        await asyncio.wait({waiting, closed})
