"""A real server that speaks S3."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import Request, urlopen

import pytest
from _components import absent

KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret"}  # whom the server lets in


@dataclass(frozen=True)
class S3:
    """A server that speaks S3."""

    endpoint: str

    def make_bucket(self, name: str) -> None:
        self.ask("PUT", f"/{name}")

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        kind = {"Content-Type": "application/octet-stream"}
        asked = Request(self.endpoint + path, data, kind, method=method)  # noqa: S310  our own server
        with urlopen(asked, timeout=60) as answer:  # noqa: S310  likewise
            return bytes(answer.read())

    def url(self, bucket: str, prefix: str = "") -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"


@contextmanager
def serving_s3() -> Iterator[S3]:
    """A server of one's own, and an environment that lets us in."""
    if not all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors")):
        absent("a server that speaks S3", "pip install 'edgepfl[dev]'")
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  a second, and only these tests need it

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in KEYS.items():
            patch.setenv(name, value)
        host, port = server.get_host_and_port()
        s3 = S3(f"http://{host}:{port}")
        s3.make_bucket("blobs")
        yield s3
    server.stop()
