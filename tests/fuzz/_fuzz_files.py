"""Targets that read files and sockets of the machine itself: another version, another hand or a bad disk wrote them."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgpack
import msgspec
import numpy as np
from _fuzz_agreement import archive_of
from _fuzz_inputs import bytes_of, changed, either, json_of, messages_of
from _fuzz_oracle import Bound, Check, Target, back
from _fuzz_samples import REPORT, SHA, TASK
from numpy.typing import NDArray

from coordinator import journal, pieces
from coordinator.asking import Request, request_of
from coordinator.config import RunConfig
from coordinator.hub.terms import Errand, read_errand
from device_agent import checkpoint, sources
from device_agent.config import DataSettings
from device_agent.config import load as load_agent
from device_agent.interpreter import Halfway
from edgepfl.bus.conditions import required
from edgepfl.bus.settings import table_of
from edgepfl.eligibility import Conditions
from edgepfl.errors import CodecError, ConfigError, DataError, RunError, StoreError
from edgepfl.plan import TensorSpec
from edgepfl.wire import Report
from simulators.emulation.scenario_file import scenario_of
from simulators.profiles import registry, trace_file

T = TypeVar("T")


def targets() -> tuple[Target, ...]:
    """All of them."""
    return (
        _request(),
        _journal(),
        _errand(),
        _manifest(),
        _checkpoint(),
        _npz(),
        _csv(),
        _traces(),
        *_toml(),
        _conditions(),
    )


def _accepted(read: Callable[[bytes], object], refusals: type[Exception] | tuple[type[Exception], ...]) -> Check:
    """A check of a parser that nothing writes for."""

    def check(data: bytes) -> bool:
        try:
            read(data)
        except refusals:
            return False
        return True

    return check


# What the coordinator reads.


def _json(record: object) -> Any:  # noqa: ANN401  any value
    return msgspec.json.decode(msgspec.json.encode(record))


def _request() -> Target:
    requests = (Request("start", bundle="a.epb", config=RunConfig()), Request("status", run="r"), Request("watch"))
    seeds = [msgspec.json.encode(each) + b"\n" for each in requests]
    make = either(bytes_of(seeds), json_of([_json(each) for each in requests]))
    return Target("request", make, back(request_of, msgspec.json.encode, RunError), Bound(steps=5000))


def _journal() -> Target:
    seeds = [msgspec.json.encode(REPORT)]
    check = back(lambda data: journal._decode(data, Report), msgspec.json.encode, StoreError)
    return Target("journal", either(bytes_of(seeds), json_of([_json(REPORT)])), check)


def _errand() -> Target:
    errand = msgspec.to_builtins(Errand(TASK, 1, 0), builtin_types=(bytes,))
    write = msgspec.msgpack.encode
    check = back(
        lambda data: read_errand(data, where="errand"),
        write,
        StoreError,
        lambda one, other: write(one) == write(other),  # a NaN is unequal to itself
    )
    return Target("errand", either(bytes_of([msgpack.packb(errand)]), messages_of([errand])), check)


def _manifest() -> Target:
    piece = pieces.Piece((3, 2), "float32", SHA, 4)
    manifest = pieces.Manifest(({"w": {"a": piece, "b": piece}}, {}), SHA)
    check = back(lambda data: pieces.decode(data, pieces.Manifest, "manifest"), pieces.encode, CodecError)
    return Target("manifest", either(bytes_of([pieces.encode(manifest)]), json_of([_json(manifest)])), check)


# What a device reads.


def _checkpoint() -> Target:
    """Files whose digest is right: what is wrong was written so."""
    lasting = {("slot", "w", "a"): TensorSpec((2, 2)), ("slot", "w", "b"): TensorSpec((), "int64")}
    key = "k" * 64

    def write(found: checkpoint.Checkpoint) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.CheckpointFile(Path(folder) / "checkpoint").save(key, found)
            return (Path(folder) / "checkpoint").read_bytes()

    tensors = {place: np.ones(spec.shape, spec.dtype) for place, spec in lasting.items()}
    seeds = [
        write(checkpoint.Checkpoint(Halfway(7, tensors, {"loss": 0.5}), 1.5, 0.5, {"accuracy.own": 0.5}, serving))
        for serving in (None, b"model")
    ]
    head = 4 + 32

    def make(random: Random) -> bytes:
        body = changed(seeds[int(random.random() * 2)][head:], random)
        return seeds[0][:4] + hashlib.sha256(body).digest() + body

    return Target(
        "checkpoint",
        either(make, bytes_of(seeds)),
        _accepted(lambda data: checkpoint._read(data, key, lasting), CodecError),
    )


@cache
def _scratch() -> Path:
    """A file of this process, in memory where there is such a place."""
    memory = Path("/dev/shm")  # noqa: S108  the folder that is made there is our own
    folder = tempfile.mkdtemp(prefix="edgepfl-fuzz-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _in_file(read: Callable[[Path], T], suffix: str) -> Callable[[bytes], T]:
    def from_bytes(data: bytes) -> T:
        path = _scratch() / f"{os.getpid()}{suffix}"
        path.write_bytes(data)
        return read(path)

    return from_bytes


def _npz() -> Target:
    arrays: dict[str, NDArray[Any]] = {
        "train_x": np.ones((4, 3), np.float32),
        "train_y": np.zeros(4, np.int64),
        "test_x": np.ones((2, 3), np.float32),
        "test_y": np.zeros(2, np.int64),
    }
    members = {}
    for name, array in arrays.items():
        room = BytesIO()
        np.save(room, array, allow_pickle=False)
        members[f"{name}.npy"] = room.getvalue()

    def rebuilt(random: Random) -> bytes:
        name = random.choice(sorted(members))
        return archive_of({**members, name: changed(members[name], random)}, packed=random.random() < 0.3)

    read = _in_file(lambda path: sources.load(DataSettings(source=str(path))), ".npz")
    # NumPy asks for what a header says before it reads; the file is its owner's, and the pages are never touched.
    bound = Bound(base=1 << 62, steps=20_000, steps_per_byte=64)
    return Target("npz", either(bytes_of([archive_of(members)]), rebuilt), _accepted(read, DataError), bound, 2)


def _csv() -> Target:
    seeds = [b"a,b,label\n1,2,0\n3,4.5,1\n5,6,0\n7,8,1\n9,1e3,0\n", b"1,2\n3,4\n"]
    read = _in_file(lambda path: sources.load(DataSettings(source=str(path))), ".csv")
    bound = Bound(base=1 << 20, factor=256, steps=20_000, steps_per_byte=64)
    return Target("csv", bytes_of(seeds), _accepted(read, (DataError, ConfigError)), bound, 3)


# What simulations read.


def _traces() -> Target:
    seeds = [
        b"device,start,end,online,charging,wifi,idle,zone\npi-07,0,60,1,0,1,1,+02:00\npi-07,60,90.5,0,0,1,1,+02:00\npi-08,0,1e6,1,1,1,1,-05:30\n"
    ]

    def read(data: bytes) -> object:
        return trace_file.parsed(data.decode("utf-8", "replace").splitlines(), "traces")

    return Target(
        "traces", bytes_of(seeds), _accepted(read, ConfigError), Bound(base=1 << 20, factor=256, steps_per_byte=64)
    )


_AGENT = b"""device = "pi-07"
fleet = "f"
[broker]
url = "mqtt://localhost:1883"
[data]
source = "data.npz"
[conditions]
metered = true
every = 30.0
"""
_PROFILE = b"""[host]
about = "as it is"
kind = "host"
[board]
about = "b"
memory_mib = {value = 228, source = "estimate", what = "as the maker says"}
"""
_SCENARIO = (
    b'seed = 3\n[fleet]\nagents = 5\n[run]\nrounds = 2\nsteps = 3\n[[faults]]\nkind = "kill"\nat = 3.0\ndevices = 1\n'
)


def _toml() -> tuple[Target, ...]:
    bound = Bound(base=1 << 20, factor=1024, steps=50_000, steps_per_byte=256)
    agent = _in_file(load_agent, ".toml")
    scenario = _in_file(lambda path: scenario_of(table_of(path), str, folder=Path()), ".toml")

    def profiles(data: bytes) -> Mapping[str, object]:
        return registry.parsed(data.decode("utf-8", "replace"), "profiles")

    return tuple(
        Target(name, bytes_of([seed]), _accepted(read, ConfigError), bound, 2)
        for name, seed, read in (
            ("settings", _AGENT, agent),
            ("profiles", _PROFILE, profiles),
            ("scenario", _SCENARIO, scenario),
        )
    )


def _conditions() -> Target:
    seeds = [b"charging", b"min_battery=0.6", b"windows=22:00-06:00,12:00-13:00", b"max_temperature=75"]

    def read(data: bytes) -> object:
        return required(data.decode("utf-8", "replace").split(" "), Conditions())

    return Target(
        "conditions",
        bytes_of(seeds),
        _accepted(read, ConfigError),
        Bound(base=1 << 20, steps=20_000, steps_per_byte=64),
        2,
    )
