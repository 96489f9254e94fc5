"""The proxy: accepts clients, and opens a connection to the broker for each."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from edgepfl.errors import ConfigError
from simulators.faults._direction import Direction
from simulators.faults.acknowledgements import Acknowledgements
from simulators.faults.fate import End, Fates, end_of
from simulators.faults.packets import Misframed, Packet, introduced
from simulators.faults.settings import CALM, Faults, Way, described
from simulators.faults.tally import Tally

log = logging.getLogger(__name__)
_PORT = 1883


class FaultProxy:
    """Stands between clients and a broker for as long as the context lasts.

    What happens to a connection's n-th packet follows from the seed, the client's identifier and how often it has
    connected before; when packets come is up to the machine.

    Args:
        url: the broker's, ``mqtt://HOST[:PORT]``; TLS hides what this has to see.
        faults: what to do.
        seed: of everything random.
        port: to listen on, on the loopback device; 0 for any.
        host: the address to listen on.

    Attributes:
        faults: may be changed at any time, for packets and connections that come from then on.
        own: likewise, of the clients that have faults of their own, by identifier.
        away: identifiers of clients whose connections are refused; may be changed likewise.
        tally: what was done so far.
        url: where clients connect to, once the context is entered.
    """

    def __init__(
        self, url: str, faults: Faults = CALM, seed: int = 0, *, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self._broker = endpoint(url)
        self._host, self._port = host, port
        self.faults = faults
        self.own: dict[str, Faults] = {}
        self.away: set[str] = set()
        self.seed = seed
        self.tally = Tally()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._lines: dict[_Line, asyncio.Task[None]] = {}
        self._visits: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"faults with seed {self.seed} ({described(self.faults)}): {self.tally}"

    def faults_of(self, client: str) -> Faults:
        """What is done to a client's packets: :attr:`own` of it, else :attr:`faults`."""
        return self.own.get(client, self.faults)

    def silence(self, client: str = "") -> int:
        """Let the connections of one client, or all of them, go half-open: they stay, and nothing comes through.

        A new connection works: so is a NAT that forgot the old one.  How many that were.
        """
        found = [line for line in self._lines if client in {"", line.client}]
        for line in found:
            self.tally.silences += 1
            line.mute()
        return len(found)

    @property
    def connected(self) -> frozenset[str]:
        """The identifiers of the clients whose connections are open."""
        return frozenset(line.client for line in self._lines if line.client)

    def cut(self, client: str = "") -> int:
        """Cut the connections of one client, or all of them; how many that were."""
        found = [line for line in self._lines if client in {"", line.client}]
        for line in found:
            self.tally.cuts += 1
            line.cut()
        return len(found)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self._port)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"mqtt://{host}:{port}"
        log.info("%s -> %s:%d: %s", self.url, *self._broker, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        serving = list(self._lines.values())
        for line in tuple(self._lines):
            line.cut()
        await asyncio.gather(*serving, return_exceptions=True)
        log.info("%s", self)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tally.connections += 1
        try:
            upstream = await asyncio.open_connection(*self._broker)
        except OSError:
            self.tally.refused += 1
            writer.transport.abort()
            return
        line = _Line(self, (reader, writer), upstream)
        serving = asyncio.current_task()
        if serving is None:
            raise AssertionError("a server's handler is a task")
        self._lines[line] = serving
        try:
            await line.serve()
        finally:
            del self._lines[line]

    def visit(self, client: str) -> str:
        """The name of a client's new connection: what happens to it follows from that."""
        self._visits[client] += 1
        return f"{self.seed}/{client}/{self._visits[client]}"


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Line:
    """One client's connection."""

    def __init__(self, proxy: FaultProxy, client: _Streams, broker: _Streams) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self.client = ""
        self.version = 5
        self._name = ""
        self._mute: tuple[str, ...] = ()
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()

    def way(self, name: str) -> Way:
        """The faults of a direction just now."""
        way: Way = getattr(self._proxy.faults_of(self.client), name)
        return replace(way, swallow=True) if name in self._mute else way

    def introduce(self, packet: Packet) -> None:
        """Take note of who connects: from here on it is known how the connection will end."""
        self.version, self.client = introduced(packet)
        if self.client in self._proxy.away:
            self._proxy.tally.refused += 1
            self.cut()
            return
        self._name = self._proxy.visit(self.client)
        end = end_of(self._name, self._proxy.faults_of(self.client))
        if end.cut != float("inf"):
            self._timers.append(self._loop.call_later(end.cut, self._cut_off))
        if end.silence != float("inf"):
            self._timers.append(self._loop.call_later(end.silence, self._fall_silent, end))

    async def serve(self) -> None:
        """Pass on packets both ways until the connection ends."""
        from_client, from_broker = Acknowledgements(), Acknowledgements()
        directions = (
            self._direction("up", self._client[0], self._broker[1], own=from_client, others=from_broker),
            self._direction("down", self._broker[0], self._client[1], own=from_broker, others=from_client),
        )
        running = {self._loop.create_task(each.run()) for each in directions}
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for timer in self._timers:
                timer.cancel()
            for task in running:
                task.cancel()
            self.cut()
            for found in await asyncio.gather(*running, return_exceptions=True):
                _check(found)

    def mute(self) -> None:
        """Let nothing through any more, and stay."""
        self._mute = ("up", "down")

    def cut(self) -> None:
        """Close both sides at once, with whatever is under way."""
        for _, writer in (self._client, self._broker):
            writer.transport.abort()

    def _direction(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        own: Acknowledgements,
        others: Acknowledgements,
    ) -> Direction:
        return Direction(
            name,
            self,
            reader=reader,
            writer=writer,
            fates=lambda: Fates(f"{self._name}/{name}"),
            own=own,
            others=others,
            tally=self._proxy.tally,
        )

    def _cut_off(self) -> None:
        log.debug("cut %s", self._name)
        self._proxy.tally.cuts += 1
        self.cut()

    def _fall_silent(self, end: End) -> None:
        log.debug("%s falls silent: %s", self._name, end.mute)
        self._proxy.tally.silences += 1
        self._mute = end.mute


def _check(found: BaseException | None) -> None:
    """Raise what is no end of a connection, but a fault of ours."""
    if isinstance(found, BaseExceptionGroup):
        for each in found.exceptions:
            _check(each)
    elif found is not None and not isinstance(found, OSError | Misframed | asyncio.CancelledError):
        raise found


def endpoint(url: str) -> tuple[str, int]:
    """Host and port of a broker without TLS.

    Raises:
        ConfigError: the URL is not that.
    """
    remedy = "Give mqtt://HOST[:PORT]: faults are put into packets, and TLS would hide them"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"not a URL ({error})", where=url, remedy=remedy) from error
    if parts.scheme != "mqtt" or not host:
        raise ConfigError("not the URL of a broker without TLS", where=url, remedy=remedy)
    return host, port or _PORT
