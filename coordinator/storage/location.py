"""Which shared store a URL names, and opening it.

::

    /srv/edgepfl, file:///srv/edgepfl                             a directory
    s3://BUCKET/PREFIX                                            S3, all else from the environment
    s3://BUCKET/PREFIX?endpoint=http://HOST:9000&region=REGION    what speaks S3 elsewhere
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from coordinator.storage.depot import GRACE, Clock, Depot
from coordinator.storage.directory import DirectoryDepot
from edgepfl.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import S3Store

_REMEDY = (
    "Give a directory, file:///DIRECTORY or s3://BUCKET/PREFIX, which may end in ?endpoint=URL&region=REGION; "
    "credentials come from the environment"
)


@dataclass(frozen=True)
class Folder:
    """A store in a directory."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Bucket:
    """A store in a bucket.

    Attributes:
        name: the bucket's.
        prefix: what the names of our objects begin with, without slashes around it; empty: nothing.
        endpoint: ``http://HOST[:PORT]`` or ``https://...``; empty: as the environment says, else Amazon's.
        region: likewise.
    """

    name: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def locate(url: str, where: str = "store", folder: Path | None = None) -> Folder | Bucket:
    """What a URL names.

    Args:
        url: as a person wrote it.
        where: the setting's place, for errors.
        folder: that relative paths are relative to; None: the working directory.

    Raises:
        ConfigError: it names no store that we know.
    """
    try:
        parts = urlsplit(url)
        match parts.scheme:
            case "" if url:
                return Folder((folder or Path.cwd()) / Path(url).expanduser())
            case "file" if parts.netloc in {"", "localhost"} and parts.path and not parts.query:
                return Folder(Path(unquote(parts.path)))
            case "s3":
                return _bucket(parts)
    except ValueError as error:
        raise ConfigError(f"{_shown(url)} is no store ({error})", where=where, remedy=_REMEDY) from None
    raise ConfigError(f"{_shown(url)} is no store", where=where, remedy=_REMEDY)


def anchored(url: str, where: str, folder: Path) -> str:
    """The URL of a settings file in ``folder``, checked; a relative directory becomes absolute, empty stays empty.

    Raises:
        ConfigError: it names no store that we know.
    """
    if not url:
        return ""
    found = locate(url, where, folder)
    return str(found.path) if isinstance(found, Folder) else url


def open_depot(url: str, *, fleet: str = "", grace: float = GRACE, clock: Clock = time.time) -> Depot:
    """The store that a URL names, after one attempt to write to it.

    Args:
        url: see this module.
        fleet: whose it is to be from now on; empty leaves that open.
        grace: seconds that a blob without a reference stays.
        clock: more or less the store's own.

    Raises:
        ConfigError: it names no store that we know, or the library for it is missing.
        StoreError: the store cannot be reached or written to, or is another fleet's.
    """
    match locate(url):
        case Folder(path):
            depot: Depot = DirectoryDepot(path, grace=grace, clock=clock)
        case Bucket() as bucket:
            depot = _opened(bucket, grace, clock)
    depot.keep(b"")
    if fleet:
        depot.claim(fleet)
    return depot


def _bucket(parts: SplitResult) -> Bucket:
    options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    endpoint, region = options.pop("endpoint", ""), options.pop("region", "")
    if options:
        raise ValueError(f"it has no option {min(options)[:40]!r}")
    if "@" in parts.netloc or ":" in parts.netloc or not parts.netloc or parts.fragment:
        raise ValueError("a bucket's name stands alone before the first slash")
    prefix = parts.path.strip("/")
    if any(part in {"", ".", ".."} for part in prefix.split("/")) and prefix:
        raise ValueError("its prefix has an empty part")
    if endpoint:
        _check_endpoint(endpoint)
    return Bucket(parts.netloc, prefix, endpoint.rstrip("/"), region)


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or "@" in parts.netloc
        or parts.query
        or parts.port == 0
    ):
        raise ValueError("its endpoint is not http://HOST[:PORT] or https://HOST[:PORT]")


def _opened(bucket: Bucket, grace: float, clock: Clock) -> Depot:
    try:
        from obstore.store import S3Store  # noqa: PLC0415  only those with such a store have it
    except ImportError as error:
        raise ConfigError(
            "a store in a bucket needs obstore", where=str(bucket), remedy="pip install 'edgepfl[s3]'"
        ) from error
    from coordinator.storage.objects import ObjectDepot  # noqa: PLC0415  likewise

    return ObjectDepot(_store(S3Store, bucket), str(bucket), grace=grace, clock=clock)


def _store(kind: type[S3Store], bucket: Bucket) -> S3Store:
    given = {"endpoint": bucket.endpoint, "region": bucket.region}
    return kind(
        bucket.name,
        prefix=bucket.prefix or None,
        config={name: value for name, value in given.items() if value},  # type: ignore[arg-type]  # S3Config's keys
        client_options={"allow_http": True} if bucket.endpoint.startswith("http://") else None,
    )


def _shown(url: str) -> str:
    """The URL without what may be a password."""
    scheme, slashes, rest = url.partition("://")
    return repr(f"{scheme}{slashes}{rest.rpartition('@')[2]}"[:200] if slashes else url[:200])
