"""Settings files, and the ``[broker]`` table that coordinator and agent share.

::

    [broker]
    url = "mqtts://broker.example:8883"     # or mqtt://
    username = "pi-07"
    password_file = "broker.password"       # paths are relative to the file
    ca = "ca.pem"
    cert = "pi-07.pem"
    key = "pi-07.key"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from edgepfl.bus.mqtt import MqttSettings
from edgepfl.errors import ConfigError
from edgepfl.validation import convert, in_file

Record = TypeVar("Record", bound=msgspec.Struct)


class Broker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to reach the broker.

    Attributes:
        url: ``mqtt://HOST[:PORT]`` or ``mqtts://HOST[:PORT]``.
        username: empty: none.
        password_file: file with the password; empty: none.
        ca: certificates to trust; empty: the system's.
        cert: our own certificate; empty: none.
        key: its key.
    """

    url: str
    username: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


def read(path: Path, record: type[Record]) -> Record:
    """The settings in a TOML file.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown, missing, of the wrong type or impossible.
    """
    return convert(table_of(path), record, in_file(path))


def table_of(path: Path) -> dict[str, Any]:
    """What a TOML file says.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not TOML ({error})", where=str(path)) from error


def anchored(path: str, folder: Path) -> str:
    """A path of a settings file in ``folder``; an empty one stays empty."""
    return str(folder / Path(path).expanduser()) if path else ""


def broker_in(broker: Broker, folder: Path, where: str) -> Broker:
    """A ``[broker]`` table with its paths made absolute.

    Raises:
        ConfigError: its settings contradict each other, or the URL is none.
    """
    _check_broker(broker, where)
    paths = {name: anchored(getattr(broker, name), folder) for name in ("password_file", "ca", "cert", "key")}
    return msgspec.structs.replace(broker, **paths)


def mqtt_settings(broker: Broker, client_id: str, *, busy: bool = False) -> MqttSettings:
    """The bus's settings.

    Args:
        broker: after :func:`broker_in`.
        client_id: unique at the broker.
        busy: for a coordinator, whose queue holds messages for a whole fleet.

    Raises:
        ConfigError: the password cannot be read.
    """
    usual = MqttSettings(broker.url, client_id)
    return MqttSettings(
        broker.url,
        client_id,
        username=broker.username,
        password=_password(broker),
        ca=_path(broker.ca),
        cert=_path(broker.cert),
        key=_path(broker.key),
        max_queued=usual.max_queued * (16 if busy else 1),
        max_queued_bytes=usual.max_queued_bytes * (16 if busy else 1),
    )


def _path(name: str) -> Path | None:
    return Path(name) if name else None


def _password(broker: Broker) -> str:
    if not broker.password_file:
        return ""
    try:
        return Path(broker.password_file).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the password cannot be read ({error})",
            where=broker.password_file,
            remedy="Write the password in this file, readable by this user only",
        ) from error


def _check_broker(broker: Broker, where: str) -> None:
    try:
        url = urlsplit(broker.url)
        good = url.scheme in {"mqtt", "mqtts"} and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    if not good or url.username or url.path.strip("/") or url.query or url.fragment:
        raise ConfigError(
            f"{broker.url!r} is no broker",
            where=f"{where}.url",
            remedy="Give mqtt://HOST[:PORT] or mqtts://HOST[:PORT]; the user goes in username and password_file",
        )
    if bool(broker.cert) != bool(broker.key):
        raise ConfigError("a certificate and its key go together", where=where, remedy="Set both cert and key")
    if broker.password_file and not broker.username:
        raise ConfigError("a password needs a user", where=where, remedy="Set username")
    if url.scheme == "mqtt" and (broker.ca or broker.cert):
        raise ConfigError("certificates are for mqtts://", where=f"{where}.url", remedy="Use mqtts://")
