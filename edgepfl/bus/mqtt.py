"""The bus over MQTT 5: keeps one connection up, whatever happens.

Many buses share one event loop (and its one epoll): no threads, about 25 KB each.  Every connection begins
clean and subscribes anew; what the broker may remember is never trusted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from typing import Literal

from edgepfl.bus._base import Connected, Disconnected, Event, Traffic, Will
from edgepfl.bus._inbox import Inbox
from edgepfl.bus._link import Link, Lost, largest_payload
from edgepfl.bus._settings import Endpoint, MqttSettings, endpoint
from edgepfl.bus._socket import Meter
from edgepfl.errors import BusError

__all__ = ["MqttBus", "MqttSettings"]

_log = logging.getLogger("edgepfl.bus")
_TELL = 60.0  # seconds between two complaints about another client with our name
_GOODBYE = 2.0  # seconds to send what is queued at the end


class MqttBus:
    """A :class:`~edgepfl.bus._base.Bus` over MQTT 5.

    Args:
        settings: where the broker is, and who we are.
        will: what the broker publishes when this bus vanishes; not after ``stop``.
    """

    def __init__(self, settings: MqttSettings, *, will: Will | None = None) -> None:
        self._settings = settings
        self._will = will
        self._meter = Meter()
        self._inbox = Inbox(self._resume)
        self._filters: dict[str, None] = {}  # a set that keeps its order
        self._link: Link | None = None
        self._connected = False
        self._running: asyncio.Task[None] | None = None
        self._largest = largest_payload(settings.max_packet)

    @property
    def traffic(self) -> Traffic:
        """What crossed the sockets since the start: all MQTT packets, before encryption."""
        return self._meter.read()

    @property
    def backlog(self) -> int:
        """Bytes of what was published and is not sent yet (``qos=0``) or not acknowledged (``qos=1``)."""
        return self._link.backlog if self._link is not None else 0

    @property
    def connected(self) -> bool:
        """Whether the connection is up, and every filter subscribed."""
        return self._connected

    @property
    def largest(self) -> int:
        """Bytes of the longest payload that the last broker takes, or ours until one was reached."""
        return self._largest

    async def start(self) -> None:
        """Try to connect once, then go on in the background; Connected tells of success.

        Raises:
            BusError: the settings can never work: bad URL, bad certificate, refused credentials.
        """
        if self._running is not None:
            raise BusError("the bus is started already", where=self._settings.url)
        to = endpoint(self._settings)
        first: asyncio.Future[Lost | None] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(to, first), name=f"bus of {self._settings.client_id}")
        await asyncio.wait((first, self._running), return_when=asyncio.FIRST_COMPLETED)
        lost = first.result()
        if lost is not None and lost.hopeless:
            await self.stop()
            raise BusError(
                lost.reason, where=self._settings.url, remedy="Check the user, the password and the certificates"
            )

    async def stop(self) -> None:
        """Send what is queued (at most two seconds), say goodbye and close.  No event comes afterwards."""
        running, self._running = self._running, None
        if running is None:
            return
        link = self._link if self._connected else None
        self._connected = False
        try:
            if link is not None:
                await link.close(_GOODBYE)
        finally:
            running.cancel()
        await asyncio.wait((running,))

    def drop(self) -> None:
        """Cut the connection without a goodbye, as a lost network does: for tests and the emulator's faults."""
        if self._link is not None:
            self._link.abort("dropped")

    def subscribe(self, topic_filter: str) -> None:
        """Receive what is published under this filter, now and after every reconnection."""
        if topic_filter not in self._filters:
            self._filters[topic_filter] = None
            if self._link is not None and self._connected:
                self._link.subscribe([topic_filter])

    def unsubscribe(self, topic_filter: str) -> None:
        """Receive it no longer."""
        if topic_filter in self._filters:
            del self._filters[topic_filter]
            if self._link is not None and self._connected:
                self._link.unsubscribe(topic_filter)

    def publish(self, topic: str, payload: bytes, *, qos: Literal[0, 1] = 1) -> bool:
        """Send, or say False: not connected, or so much is queued that the caller must wait.

        Raises:
            BusError: it is longer than ``max_packet``, and so can never be sent.
        """
        return self._link is not None and self._connected and self._link.publish(topic, payload, qos)

    async def receive(self) -> Event:
        """The next event."""
        return await self._inbox.take()

    def _resume(self) -> None:
        if self._link is not None:
            self._link.resume()

    async def _run(self, to: Endpoint, first: asyncio.Future[Lost | None]) -> None:
        loop = asyncio.get_running_loop()
        attempt = 0
        rivalry = _Rivalry(self._settings.client_id)
        while True:
            began = loop.time()
            lost = await self._serve(to, first)
            if not first.done():
                first.set_result(lost)
            if self._running is None:  # stopped
                return
            # Where two clients throw each other out, the one that comes first stays for as long as the other waits:
            # so one goes on waiting longer, up to the cap, and the other does not.
            lived = loop.time() - began
            attempt = 0 if lived > 2 * self._ceiling(attempt) else attempt + 1
            wait = self._wait(attempt, lost)
            if lost.taken_over:
                rivalry.taken_over(began + lived)
            _log.log(_level(lost), "%s: %s; next attempt in %.1f s", self._settings.client_id, lost.reason, wait)
            await asyncio.sleep(wait)

    async def _serve(self, to: Endpoint, first: asyncio.Future[Lost | None]) -> Lost:
        """One connection, until it is lost."""
        link = Link(self._settings, to, will=self._will, meter=self._meter, inbox=self._inbox)
        self._link = link
        try:
            lost = await self._open(link)
            if lost is None:
                self._connected = True
                self._largest = largest_payload(link.limit)
                self._inbox.put(Connected())
                if not first.done():
                    first.set_result(None)
                lost = await link.lost
                self._connected = False
                if self._running is not None:  # else it was stopped
                    self._inbox.put(Disconnected(lost.reason))
            return lost
        finally:
            self._connected = False
            self._link = None
            link.abort("stopped")

    async def _open(self, link: Link) -> Lost | None:
        filters = tuple(self._filters)
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                await link.open(filters)
        except TimeoutError:
            return Lost(f"no answer within {self._settings.connect_timeout} s")
        except OSError as error:
            return Lost(str(error), hopeless=isinstance(error, ssl.SSLCertVerificationError))
        except Exception as error:  # noqa: BLE001  whatever it is, the bus goes on trying
            return Lost(f"error while connecting ({error!r})")
        if not link.ready.done():
            return link.lost.result()
        link.subscribe([each for each in self._filters if each not in filters])  # added meanwhile
        return None

    def _ceiling(self, attempt: int) -> float:
        cap = min(self._settings.backoff_cap, self._settings.retry_cap)
        return min(cap, self._settings.backoff_base * 2.0 ** min(attempt, 32))

    def _wait(self, attempt: int, lost: Lost) -> float:
        """Seconds until the next attempt: random, so that a fleet does not come back all at once.

        Two clients with one name throw each other out for ever: only waiting makes that bearable.
        """
        if lost.taken_over or lost.hopeless:
            return random.uniform(0.5, 1.0) * self._settings.backoff_cap
        return random.uniform(0.0, self._ceiling(attempt))


class _Rivalry:
    """Tells, but not all the time, that another client goes on taking our name."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._times = 0
        self._told = -_TELL

    def taken_over(self, now: float) -> None:
        """It did, at ``now``; once is a restart."""
        self._times += 1
        if self._times > 1 and now >= self._told + _TELL:
            self._told = now
            _log.error(
                "%s: taken over %d times: another client goes on connecting with this name, and the two throw each "
                "other out. Give each device a name of its own, and end one of them",
                self._client_id,
                self._times,
            )


def _level(lost: Lost) -> int:
    return logging.WARNING if lost.taken_over or lost.hopeless else logging.INFO
