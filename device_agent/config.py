"""``agent.toml``: what an agent is told by its owner.

::

    device = "pi-07"
    fleet = "watches"
    state = "state"                         # directory of the store; paths are relative to this file

    [broker]
    url = "mqtts://broker.example:8883"     # or mqtt://
    username = "pi-07"
    password_file = "broker.password"
    ca = "ca.pem"
    cert = "pi-07.pem"
    key = "pi-07.key"

    [data]
    source = "watch:load"                   # MODULE:FUNCTION, or FILE.npz, or FILE.csv
    options = {wearer = 3}

    [runtime]
    threads = 1
    spin = false
    heartbeat = 0.0                         # seconds; 0: as the task says
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from edgepfl.errors import ConfigError
from edgepfl.topics import check_name

FILES = (".npz", ".csv")
"""The endings of data sources that are files."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class BrokerSettings(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[broker]``.

    Attributes:
        url: ``mqtt://HOST[:PORT]`` or ``mqtts://HOST[:PORT]``.
        username: empty: none.
        password_file: file with the password; empty: none.
        ca: certificates to trust; empty: the system's.
        cert: the device's own certificate; empty: none.
        key: its key.
    """

    url: Text
    username: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


class DataSettings(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[data]``.

    Attributes:
        source: ``MODULE:FUNCTION``, or a file that ends in one of :data:`FILES`.
        options: the source's keyword arguments.
        folder: where a plug-in's module is also looked for; set by :func:`load` to the file's own.
    """

    source: Text
    options: dict[str, Any] = {}
    folder: str = ""


class RuntimeSettings(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[runtime]``.

    Attributes:
        threads: threads inside one operator.
        spin: let idle threads burn the processor for a little less latency.
        heartbeat: seconds between signs of progress; 0: as the task says.
    """

    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    spin: bool = False
    heartbeat: Annotated[float, Meta(ge=0, le=3600)] = 0.0


class AgentConfig(_Table, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; after :func:`load` its paths are absolute.

    Attributes:
        device: the device's name, unique in its fleet.
        fleet: the fleet's name.
        broker: how to reach the broker.
        data: where the examples come from.
        state: directory of the store.
        runtime: how the machine is used.
    """

    device: str
    fleet: str
    broker: BrokerSettings
    data: DataSettings
    state: Text = "state"
    runtime: RuntimeSettings = RuntimeSettings()


def load(path: Path) -> AgentConfig:
    """The settings in a file.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown, missing, of the wrong type or impossible.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML ({error})", where=str(path)) from error
    _check_known(table, AgentConfig, str(path), "")
    try:
        config = msgspec.convert(table, AgentConfig)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        key = place.strip("`").removeprefix("$.")
        raise ConfigError(what[:1].lower() + what[1:], where=f"{path}, {key}" if key else str(path)) from None
    _check(config, str(path))
    return _anchored(config, path.absolute().parent)


def password(settings: BrokerSettings) -> str:
    """The content of the password file without its line end, or "" where there is none.

    Raises:
        ConfigError: it cannot be read.
    """
    if not settings.password_file:
        return ""
    try:
        return Path(settings.password_file).read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the password cannot be read ({error})",
            where=settings.password_file,
            remedy="Write the password in this file, readable by the agent only",
        ) from error


def _check_known(table: dict[str, Any], record: type[msgspec.Struct], where: str, prefix: str) -> None:
    allowed = {field.name: field.type for field in msgspec.structs.fields(record) if field.name != "folder"}
    for name, value in table.items():
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, 1)
            remedy = f"Did you mean {close[0]!r}? " if close else ""
            raise ConfigError(
                "there is no such setting",
                where=f"{where}, {prefix}{name}",
                remedy=f"{remedy}Allowed here: {', '.join(allowed)}",
            )
        kind = allowed[name]
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            _check_known(value, kind, where, f"{prefix}{name}.")


def _check(config: AgentConfig, where: str) -> None:
    check_name(config.device, f"{where}, device")
    check_name(config.fleet, f"{where}, fleet")
    _check_broker(config.broker, f"{where}, broker")
    source = config.data.source
    module, colon, function = source.partition(":")
    if not source.endswith(FILES) and not (colon and function.isidentifier() and module):
        raise ConfigError(
            f"{source!r} is no data source",
            where=f"{where}, data.source",
            remedy=f"Give MODULE:FUNCTION, or a file that ends in {' or '.join(FILES)}",
        )


def _check_broker(broker: BrokerSettings, where: str) -> None:
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


def _anchored(config: AgentConfig, folder: Path) -> AgentConfig:
    def anchor(path: str) -> str:
        return str(folder / Path(path).expanduser()) if path else ""

    broker, data = config.broker, config.data
    paths = {name: anchor(getattr(broker, name)) for name in ("password_file", "ca", "cert", "key")}
    source = anchor(data.source) if data.source.endswith(FILES) else data.source
    replace = msgspec.structs.replace
    return replace(
        config,
        broker=replace(broker, **paths),
        data=replace(data, source=source, folder=str(folder)),
        state=anchor(config.state),
    )
