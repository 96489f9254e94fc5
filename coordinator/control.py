"""How ``edgepfl run`` talks to a coordinator: lines of JSON over a Unix socket in its state directory.

Only the user who runs the coordinator can connect to it.  A request is one line, an object with ``do`` ("start",
"stop", "status" or "watch"); the answer is one line, ``{"ok": ...}`` or ``{"error": ...}``, and for "watch" one line
for every change until the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from pathlib import Path

import msgspec

from coordinator.config import RunConfig
from coordinator.service import Coordinator
from coordinator.status import RunStatus
from edgepfl.errors import EdgepflError, RunError

SOCKET = "control.sock"
LINE_LIMIT = 1 << 20  # bytes


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person asks.

    Attributes:
        do: start, stop, status or watch.
        run: of stop, status and watch; the newest where it is empty.
        bundle: of start, the path of a bundle file.
        config: of start.
    """

    do: str
    run: str = ""
    bundle: str = ""
    config: RunConfig | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the coordinator says: a run's status, a started run's id, or an error."""

    ok: RunStatus | str | None = None
    error: str = ""


@contextlib.asynccontextmanager
async def serve(coordinator: Coordinator, state: Path) -> AsyncIterator[None]:
    """Answer requests for as long as the context lasts."""
    with _short_path(state) as path:
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(_Handler(coordinator).handle, path, limit=LINE_LIMIT)
        (state / SOCKET).chmod(0o600)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)


async def ask(state: Path, request: Request) -> AsyncIterator[Answer]:
    """The answers of the coordinator whose state directory this is.

    Raises:
        RunError: no coordinator is there, it hung up, or it says what is wrong.
    """
    with _short_path(state) as path:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except OSError as error:
            raise RunError(
                "no coordinator answers", where=str(state), remedy="Start one with: edgepfl coordinator --config FILE"
            ) from error
        try:
            writer.write(msgspec.json.encode(request) + b"\n")
            while line := await _next_line(reader, writer, state):
                answer = msgspec.json.decode(line, type=Answer)
                if answer.error:
                    raise RunError(answer.error)
                yield answer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _next_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: Path) -> bytes:
    try:
        await writer.drain()
        return await reader.readline()
    except ConnectionError as error:
        raise RunError("the coordinator hung up", where=str(state), remedy="Ask again") from error


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
            request = msgspec.json.decode(await reader.readline(), type=Request)
            async with contextlib.aclosing(self._answers(request, reader)) as answers:
                async for answer in answers:
                    writer.write(msgspec.json.encode(answer) + b"\n")
                    await writer.drain()
        except ConnectionError:
            raise
        except (msgspec.DecodeError, EdgepflError, OSError, ValueError) as error:
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


@contextlib.contextmanager
def _short_path(state: Path) -> Iterator[Path]:
    """The socket's path by way of its open directory: the kernel takes only 107 bytes of a socket's path."""
    try:
        folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunError(f"no coordinator's state is there ({error.strerror})", where=str(state)) from error
    try:
        yield Path(f"/proc/self/fd/{folder}") / SOCKET
    finally:
        os.close(folder)
