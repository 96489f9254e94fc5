"""A long training, written down between two steps, so that a power cut costs a minute and not the round.

::

    STATE/checkpoint     "epc1", SHA-256 of all that follows, length of the head, head, model that predicts, tensors

There is one file, because a device trains one task at a time.  It is written anew each time, in a temporary file that
is synchronised and renamed: a power cut leaves the last checkpoint or this one.  It is not in the database, whose
journal would write every byte twice.

A checkpoint is used only by the very task that it is of (:func:`key_of`): the same run, round, attempt, seed, download,
bundle, hyperparameters, runtime, kept slots and examples.  Whatever else is found, damaged, torn or foreign, is ignored
and deleted, and the round begins anew, with the same result.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from device_agent.data import Examples, named
from device_agent.interpreter import Halfway
from device_agent.memory import Memory
from device_agent.runners import Array
from device_agent.wiring import Key
from edgepfl import codec
from edgepfl.bus._files import settle, storing
from edgepfl.errors import CodecError, StoreError
from edgepfl.plan import TensorSpec
from edgepfl.seeds import derive
from edgepfl.tree import Tree
from edgepfl.wire import Task

log = logging.getLogger(__name__)
FILE = "checkpoint"
"""Its name in a device's state directory."""

_MAGIC = b"epc1"
_UNFINISHED = ".tmp"
_DIGEST = 32  # bytes
_LENGTH = 4  # bytes of the head's length, little-endian
_HEAD_LIMIT = 1 << 20
_UNRELATED = ("cohort", "deadline", "heartbeat", "conditions")  # fields of a task that do not change its result


@dataclass(frozen=True)
class Checkpoint:
    """A task, half done.

    Attributes:
        halfway: its training.
        trained: seconds that the training has taken.
        evaluated: seconds that the evaluation before it took.
        metrics: of that evaluation.
        serving: the bytes of the model that predicts, if the task asked for one.
    """

    halfway: Halfway
    trained: float
    evaluated: float
    metrics: Mapping[str, float]
    serving: bytes | None


class _Head(msgspec.Struct, frozen=True):
    """What comes before the tensors; ``serving`` is the number of bytes between, -1 for none."""

    key: str
    steps: int
    sums: dict[str, float]
    trained: float
    evaluated: float
    metrics: dict[str, float]
    serving: int


_HEAD = msgspec.msgpack.Decoder(_Head)


class CheckpointFile:
    """The file of one device.

    Args:
        path: where it is; its directory exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, key: str, checkpoint: Checkpoint) -> int:
        """Replace what is there; how many bytes were written.

        Raises:
            StoreError: disk full, or no permission.
        """
        serving = checkpoint.serving
        head = _Head(
            key,
            checkpoint.halfway.steps,
            dict(checkpoint.halfway.sums),
            checkpoint.trained,
            checkpoint.evaluated,
            dict(checkpoint.metrics),
            -1 if serving is None else len(serving),
        )
        packed = msgspec.msgpack.encode(head)
        tensors = _tensors(checkpoint.halfway.tensors)
        parts = (len(packed).to_bytes(_LENGTH, "little"), packed, serving or b"", tensors)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        temporary = self._path.with_suffix(_UNFINISHED)
        with storing(self._path):
            try:
                size = _write(temporary, (_MAGIC, digest.digest(), *parts))
                settle(temporary, self._path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return size

    def load(self, key: str, lasting: Mapping[Key, TensorSpec]) -> Checkpoint | None:
        """The checkpoint of ``key``, or None; whatever else is there is deleted.

        Args:
            key: see :func:`key_of`.
            lasting: what tensors it must have.
        """
        try:
            with storing(self._path):
                data = self._path.read_bytes() if self._path.exists() else None
            return None if data is None else _read(data, key, lasting)
        except (StoreError, CodecError) as error:
            log.warning("the checkpoint is ignored, and the round begins anew: %s", error)
            self.drop()
            return None

    @property
    def exists(self) -> bool:
        """Whether there is any checkpoint."""
        return self._path.exists()

    def drop(self) -> None:
        """Delete it, if it is there.  That it cannot be deleted changes nothing: no other task uses it."""
        try:
            self._path.with_suffix(_UNFINISHED).unlink(missing_ok=True)  # of a power cut
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted (%s)", self._path, error.strerror)


class Saver:
    """Saves one task's training from time to time.

    Args:
        file: where to.
        every: seconds of training between two checkpoints; 0 for none.
        resting: whether to save now, because the training is about to be interrupted.
        over: whether the task is over, so that nothing of it is wanted any more.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        file: CheckpointFile,
        every: float,
        *,
        resting: Callable[[], bool] = lambda: False,
        over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._every = every
        self._resting = resting
        self._over = over
        self._clock = clock
        self._key: Callable[[], str] = str
        self._last = clock()

    def load(self, key: Callable[[], str], lasting: Mapping[Key, TensorSpec]) -> Checkpoint | None:
        """What there is of the task, if anything; the time until the next one begins now.

        Args:
            key: gives the task's, see :func:`key_of`; called only where there is something to load or to save, because
                it reads all examples.
            lasting: what tensors a checkpoint must have.
        """
        self._last = self._clock()
        self._key = cache(key)
        return self._file.load(self._key(), lasting) if self._every > 0 and self._file.exists else None

    @property
    def resting(self) -> bool:
        """Whether the training is to end here, and go on another time."""
        return self._resting()

    @property
    def due(self) -> bool:
        """Whether to save now."""
        return self._every > 0 and (self._resting() or self._clock() - self._last >= self._every)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save; a disk that is full costs the checkpoint and not the training."""
        if self._over():
            return
        try:
            size = self._file.save(self._key(), checkpoint)
        except StoreError as error:
            log.warning("no checkpoint at step %d: %s", checkpoint.halfway.steps, error)
        else:
            log.debug("checkpoint at step %d, %d bytes", checkpoint.halfway.steps, size)
        if self._over():  # meanwhile: whoever deleted the file did so too early
            self._file.drop()
        self._last = self._clock()


def key_of(task: Task, device: str, runtime: str, keep: bytes | None, examples: Examples) -> str:
    """What a training depends on, as a digest: a checkpoint of anything else is not this task's.

    Args:
        task: all of it but who else is in the cohort and how long it may take.
        device: whose it is.
        runtime: what runs the graphs, with its version.
        keep: the settled KEEP slots.
        examples: the device's data.
    """
    fields = {name: value for name, value in msgspec.structs.asdict(task).items() if name not in _UNRELATED}
    fields |= {"bundle": task.bundle.sha256, "download": task.download.sha256}
    digest = hashlib.sha256(msgspec.msgpack.encode((device, runtime, fields), order="deterministic"))
    digest.update(hashlib.sha256(keep).digest() if keep is not None else b"none")
    digest.update(fingerprint(examples))
    return digest.hexdigest()


def fingerprint(examples: Examples) -> bytes:
    """A digest of all examples, with their shapes and types."""
    digest = hashlib.sha256()
    parts = (
        *named("train_x", examples.train_x),
        ("train_y", examples.train_y),
        *named("test_x", examples.test_x),
        ("test_y", examples.test_y),
    )
    for name, array in parts:
        digest.update(derive(0, name, str(array.dtype), *array.shape).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _write(path: Path, parts: Iterable[bytes]) -> int:
    """Write a file that only its owner may read; how many bytes."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        return sum(file.write(part) for part in parts)


def _group(key: Key) -> str:
    kind, group, _ = key
    return f"{kind}.{group}"


def _tensors(memory: Memory) -> bytes:
    trees: dict[str, dict[str, Array]] = {}
    for key, array in memory.items():
        trees.setdefault(_group(key), {})[key[2]] = array
    return codec.encode({group: Tree(tensors) for group, tensors in trees.items()})


def _read(data: bytes, key: str, lasting: Mapping[Key, TensorSpec]) -> Checkpoint:
    """What :meth:`CheckpointFile.save` wrote.

    Raises:
        CodecError: damaged, or of another task.
    """
    start = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(memoryview(data)[start:]).digest() != data[len(_MAGIC) : start]:
        raise CodecError("it is damaged", where=FILE)
    length = int.from_bytes(data[start : start + _LENGTH], "little")
    start += _LENGTH
    try:
        head = _HEAD.decode(data[start : start + min(length, _HEAD_LIMIT)])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError(f"it cannot be read ({error})", where=FILE) from error
    if head.key != key:
        raise CodecError("it is of another task, or of other examples", where=FILE)
    start += length
    model = max(head.serving, 0)
    serving = None if head.serving < 0 else data[start : start + model]
    expected: dict[str, dict[str, TensorSpec]] = {}
    for place, spec in lasting.items():
        expected.setdefault(_group(place), {})[place[2]] = spec
    trees = codec.decode(bytearray(memoryview(data)[start + model :]), expected, where=FILE)
    halfway = Halfway(head.steps, {place: trees[_group(place)][place[2]] for place in lasting}, head.sums)
    return Checkpoint(halfway, head.trained, head.evaluated, head.metrics, serving)
