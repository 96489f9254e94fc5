"""How to reach an MQTT broker."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from edgepfl.errors import BusError

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class MqttSettings:
    """How to reach a broker, and how much may be under way.

    Attributes:
        url: ``mqtt://host[:1883]`` or, with TLS, ``mqtts://host[:8883]``.
        client_id: unique at the broker; another client with the same one throws this one out.
        username: with a password, if the broker wants them.
        ca: certificate authorities (PEM) to trust instead of the system's.
        cert: this client's certificate (PEM), with its ``key``.
        keepalive: seconds; a dead connection is noticed within about twice as many.
        connect_timeout: seconds until a connection has to be ready for use.
        backoff_base: seconds; the wait before a reconnection is random, at first up to this long, then up to twice
            as long each time.
        backoff_cap: seconds; no wait is longer.
        retry_cap: likewise while a broker does not answer or goes away: a fleet must be back seconds after its broker.
            Only who was thrown out by a client of the same name, or was refused, waits longer.
        receive_maximum: QoS 1 messages that the broker may have under way to us.
        max_inflight: QoS 1 messages that we have under way to the broker.
        max_queued: messages that are published and not yet sent (QoS 0) or acknowledged (QoS 1).
        max_queued_bytes: their bytes.
        max_packet: bytes of one message, both ways.
    """

    url: str
    client_id: str
    username: str = ""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    keepalive: int = 30
    connect_timeout: float = 10.0
    backoff_base: float = 0.2
    backoff_cap: float = 30.0
    retry_cap: float = 8.0
    receive_maximum: int = 16
    max_inflight: int = 8
    max_queued: int = 256
    max_queued_bytes: int = 4 << 20
    max_packet: int = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """Where to connect, and with which TLS, if any."""

    host: str
    port: int
    tls: ssl.SSLContext | None


def endpoint(settings: MqttSettings) -> Endpoint:
    """The endpoint that the settings name.

    Raises:
        BusError: the URL is none of ours, or a certificate cannot be used.
    """
    example = "Write mqtt://host:1883, or mqtts://host:8883 for TLS"
    try:
        parts = urlsplit(settings.url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BusError(f"not a URL ({error})", where=settings.url, remedy=example) from error
    if parts.username is not None or parts.password is not None:
        raise BusError(
            "a password in the URL", where=f"{parts.scheme}://...", remedy="Set username and password instead"
        )
    if parts.scheme not in _PORTS or not host or parts.path.strip("/") or parts.query:
        raise BusError("not the URL of an MQTT broker", where=settings.url, remedy=example)
    tls = _tls(settings) if parts.scheme == "mqtts" else None
    if tls is None and (settings.ca or settings.cert or settings.key):
        raise BusError("certificates are set, and the URL has no TLS", where=settings.url, remedy="Write mqtts://")
    return Endpoint(host, port or _PORTS[parts.scheme], tls)


def _tls(settings: MqttSettings) -> ssl.SSLContext:
    if (settings.cert is None) != (settings.key is None):
        raise BusError(
            "a certificate goes with its key", where=settings.url, remedy="Set both cert and key, or neither"
        )
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.cert is not None:
            context.load_cert_chain(settings.cert, settings.key)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (settings.ca, settings.cert, settings.key) if path)
        raise BusError(
            f"cannot use the certificates ({error})", where=files, remedy="Check that they are PEM files"
        ) from error
    return context
