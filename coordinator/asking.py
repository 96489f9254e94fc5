"""How ``edgepfl run`` talks to a coordinator: lines of JSON over a Unix socket in its state directory.

Only the user who runs the coordinator can connect to it.  A request is one line, an object with ``do`` ("start",
"stop", "status", "watch" or "clusters"); the answer is one line, ``{"ok": ...}``, ``{"clusters": ...}`` or
``{"error": ...}``, and for "watch" one line for every change until the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from coordinator.clusters import Clusters
from coordinator.config import RunConfig
from coordinator.status import RunStatus
from edgepfl.errors import RunError

SOCKET = "control.sock"
LINE_LIMIT = 8 << 20  # bytes: a status of 10,000 devices


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person asks.

    Attributes:
        do: start, stop, status, watch or clusters.
        run: of all but start; the newest where it is empty.
        bundle: of start, the path of a bundle file.
        config: of start.
    """

    do: str
    run: str = ""
    bundle: str = ""
    config: RunConfig | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the coordinator says: a run's status, its clusters, a started run's id, or an error."""

    ok: RunStatus | str | None = None
    clusters: Clusters | None = None
    error: str = ""


def request_of(line: bytes) -> Request:
    """What a line asks.

    Raises:
        RunError: nothing that may be asked.
    """
    try:
        return msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RunError(f"no request ({error})", where="control socket", remedy="Use edgepfl run") from error


async def ask(state: Path, request: Request) -> AsyncIterator[Answer]:
    """The answers of the coordinator whose state directory this is.

    Raises:
        RunError: no coordinator is there, it hung up, or it says what is wrong.
    """
    with socket_in(state) as path:
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


@contextlib.contextmanager
def socket_in(state: Path) -> Iterator[Path]:
    """The socket's path by way of its open directory: the kernel takes only 107 bytes of a socket's path."""
    try:
        folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunError(
            f"no coordinator's state is there ({error.strerror})",
            where=str(state),
            remedy="Start one with: edgepfl coordinator --config FILE",
        ) from error
    try:
        yield Path(f"/proc/self/fd/{folder}") / SOCKET
    finally:
        os.close(folder)
