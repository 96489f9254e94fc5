"""A URL names one store, or is refused with the reason; a store that cannot be used is told at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from _s3 import S3

from coordinator.storage.directory import DirectoryDepot
from coordinator.storage.location import Bucket, Folder, anchored, locate, open_depot
from edgepfl.errors import ConfigError, StoreError

FREE = "http://127.0.0.1:9"  # the port where everything is thrown away; nobody listens there


def test_where_a_url_leads(tmp_path: Path) -> None:
    assert locate("blobs", folder=tmp_path) == Folder(tmp_path / "blobs")
    assert locate("/srv/blobs") == locate("file:///srv/blobs") == locate("file://localhost/srv/blobs")
    assert locate("file:///srv/my%20blobs") == Folder(Path("/srv/my blobs"))
    assert locate("~/blobs") == Folder(Path.home() / "blobs")
    assert locate("s3://bucket") == locate("s3://bucket/") == Bucket("bucket")
    url = "s3://bucket/a/b/?endpoint=http://minio:9000/&region=eu-west-1"
    assert locate(url) == Bucket("bucket", "a/b", "http://minio:9000", "eu-west-1")
    assert str(locate(url)) == "s3://bucket/a/b"
    assert anchored("", "store", tmp_path) == ""
    assert anchored("blobs", "store", tmp_path) == str(tmp_path / "blobs")
    assert anchored(url, "store", tmp_path) == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is no store"),
        ("gopher://somewhere", "is no store"),
        ("file://elsewhere/srv", "is no store"),
        ("file://", "is no store"),
        ("s3://", "stands alone"),
        ("s3:///prefix", "stands alone"),
        ("s3://key:password@bucket", "stands alone"),
        ("s3://bucket:9000", "stands alone"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/../b", "empty part"),
        ("s3://bucket#part", "stands alone"),
        ("s3://bucket?secret=x", "no option 'secret'"),
        ("s3://bucket?region", "bad query"),
        ("s3://bucket?endpoint=minio:9000", "endpoint is not"),
        ("s3://bucket?endpoint=http://key:password@minio", "endpoint is not"),
        ("s3://[bucket", "is no store"),
    ],
)
def test_a_url_that_names_no_store(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        locate(url, "coordinator.toml, store")
    assert caught.value.where == "coordinator.toml, store"
    assert "s3://BUCKET" in caught.value.remedy
    assert "key:" not in str(caught.value)


def test_a_directory_opens(tmp_path: Path) -> None:
    depot = open_depot((tmp_path / "new" / "blobs").as_uri())
    assert isinstance(depot, DirectoryDepot)
    sha256 = depot.keep(b"data")
    assert open_depot(str(tmp_path / "new" / "blobs"), fleet="farm").read(sha256) == b"data"
    with pytest.raises(StoreError, match="it is the store of fleet 'farm'"):
        open_depot(str(tmp_path / "new" / "blobs"), fleet="shed")
    assert depot.where == str(tmp_path / "new" / "blobs")


def test_a_bucket_is_shared_by_url_and_prefixes_keep_apart(s3: Callable[[], S3]) -> None:
    one, other = open_depot(s3().url("blobs", "one")), open_depot(s3().url("blobs", "two/three"))
    sha256 = one.keep(b"data")
    assert open_depot(s3().url("blobs", "one")).read(sha256) == b"data"
    assert not other.has(sha256)
    assert other.digests().isdisjoint({sha256})
    assert one.where == "s3://blobs/one"


def test_the_environment_says_where_s3_is(s3: Callable[[], S3], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3().endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert open_depot("s3://blobs/environment").digests()


def test_no_bucket(s3: Callable[[], S3]) -> None:
    with pytest.raises(StoreError, match="no such bucket") as caught:
        open_depot(s3().url("nowhere"))
    assert "s3://nowhere" in caught.value.where


def test_a_bucket_that_vanishes(s3: Callable[[], S3]) -> None:
    s3().make_bucket("vanishing")
    depot = open_depot(s3().url("vanishing"))
    depot.delete(depot.keep(b""))
    s3().ask("DELETE", "/vanishing")
    for act in (depot.digests, lambda: depot.read("0" * 64), lambda: depot.keep(b"data")):
        with pytest.raises(StoreError, match="no such bucket"):
            act()


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:GetObject", "s3:DeleteObject"])
def test_what_is_not_allowed_is_told(action: str, s3: Callable[[], S3]) -> None:
    bucket = f"guarded-{action[3:].lower()}"
    s3().make_bucket(bucket)
    depot = open_depot(s3().url(bucket))
    statement = {"Effect": "Deny", "Principal": "*", "Action": [action], "Resource": f"arn:aws:s3:::{bucket}/*"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    s3().ask("PUT", f"/{bucket}?policy", json.dumps(policy).encode())
    acts: dict[str, Callable[[], object]] = {
        "s3:PutObject": lambda: depot.keep(b"new"),
        "s3:GetObject": lambda: depot.read(depot.keep(b"")),
        "s3:DeleteObject": lambda: depot.delete(depot.keep(b"")),
    }
    with pytest.raises(StoreError, match="not allowed") as caught:
        acts[action]()
    assert "PutObject" in caught.value.remedy


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret that no error shows")
    with pytest.raises(StoreError, match="the store failed") as caught:
        open_depot(f"s3://bucket?endpoint={FREE}")
    assert FREE in caught.value.what
    assert "\n" not in str(caught.value)
    assert "a secret" not in str(caught.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError) as caught:
        open_depot("s3://bucket")
    assert "edgepfl[s3]" in caught.value.remedy


def test_whoever_has_no_bucket_needs_no_library(tmp_path: Path) -> None:
    """The coordinator's settings and a store in a directory."""
    program = (
        "import sys; sys.modules['obstore'] = None; from coordinator import config; "
        "from coordinator.storage.location import open_depot; from coordinator.storage import mirrored; "
        f"open_depot({str(tmp_path)!r}).keep(b'')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
