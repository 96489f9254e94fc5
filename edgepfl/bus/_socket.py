"""A connected socket for paho, opened without blocking the event loop, which counts its bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from edgepfl.bus._base import Traffic

READ_AHEAD = 16 << 10  # bytes: paho reads a packet's first bytes one by one


@dataclass
class Meter:
    """Counts what :class:`~edgepfl.bus._base.Traffic` reports, over all connections of a bus."""

    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: int = 0

    def read(self) -> Traffic:
        """The counts so far."""
        return Traffic(self.bytes_in, self.bytes_out, self.messages_in, self.messages_out)


class CountedSocket:
    """What paho takes for a socket: counts what crosses it, and reads ahead to save system calls."""

    def __init__(self, sock: socket.socket, meter: Meter) -> None:
        self._sock = sock
        self._meter = meter
        self._ahead = b""
        self._at = 0  # of _ahead, that was given out

    def recv(self, buffer_size: int) -> bytes:
        """At most ``buffer_size`` bytes; an empty answer is the end."""
        if self._at == len(self._ahead):
            self._ahead, self._at = b"", 0
            data = self._sock.recv(max(buffer_size, READ_AHEAD))
            self._meter.bytes_in += len(data)
            if len(data) <= buffer_size:
                return data
            self._ahead = data
        taken = self._ahead[self._at : self._at + buffer_size]
        self._at += len(taken)
        return taken

    def send(self, buffer: bytes | bytearray) -> int:
        """Send what the socket takes now, and say how much it was."""
        sent = self._sock.send(buffer)
        self._meter.bytes_out += sent
        return sent

    def pending(self) -> int:
        """Bytes that can be received although the selector will not report them."""
        below = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) and self._sock.fileno() >= 0 else 0
        return len(self._ahead) - self._at + below

    def close(self) -> None:
        """Close the connection at once."""
        self._sock.close()

    def fileno(self) -> int:
        """The file descriptor, or -1 when closed."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  paho's signature
        """As paho wants it."""
        self._sock.setblocking(flag)


async def open_socket(host: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """A connected socket, with its TLS handshake done.

    Raises:
        OSError: no address of the host answers, or (ssl.SSLError) the certificate does not convince.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(0)
            await loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
                await _shake_hands(sock)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:  # cancelled
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _shake_hands(sock: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(sock, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _ready(sock, loop.add_writer, loop.remove_writer)
        else:
            return


async def _ready(sock: ssl.SSLSocket, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    ready = asyncio.get_running_loop().create_future()
    handle = sock.fileno()
    add(handle, _wake, ready)
    try:
        await ready
    finally:
        remove(handle)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
