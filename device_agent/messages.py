"""What an agent says of itself, as messages."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass

from msgspec import UNSET

import edgepfl
from device_agent.conditions_outlook import Outlook
from device_agent.privacy import weight_of
from device_agent.session import TaskId
from device_agent.work import Product
from edgepfl.wire import CHUNK, BlobRef, Failed, Gone, Hello, Progress, Report, Stopped, Task

_MIB = 1 << 20
_INCARNATION = 40  # bits
_DETAIL = 256  # characters of a reason


REMEDY = (
    "Give each device a name of its own in agent.toml, and a copied card a state directory of its own; "
    "start this agent again when the other one is gone"
)
"""What to do about two agents with one name."""


def new_incarnation() -> int:
    """A number for one process's agent that no other has: 40 bits, always as long on the wire."""
    return 1 << (_INCARNATION - 1) | secrets.randbits(_INCARNATION - 1)


def installed_mib() -> int:
    """MiB of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB


@dataclass(frozen=True)
class Speaker:
    """One start of one device's agent.

    Attributes:
        device: its name.
        number: of the session, new at every start.
        runtime: what it runs graphs with.
        examples: how many it trains on.
        identity: of its storage.
        incarnation: of its process.
        memory_mib: of the machine.
    """

    device: str
    number: int
    runtime: str
    examples: int
    identity: int
    incarnation: int
    memory_mib: int

    def hello(self, pending: TaskId | None, outlook: Outlook, chunk: int = CHUNK) -> Hello:
        """That it is here, whether a report waits, and what it does not meet of the active run's conditions."""
        return Hello(
            device=self.device,
            session=self.number,
            runtimes=(self.runtime,),
            examples=self.examples,
            memory_mib=self.memory_mib,
            agent=edgepfl.__version__,
            pending=(pending.run, pending.round) if pending else ("", -1),
            chunk=UNSET if chunk == CHUNK else chunk,
            judged=outlook.judged or UNSET,
            unmet=tuple(map(_text, outlook.reasons)) or UNSET,
            identity=self.identity,
            incarnation=self.incarnation,
        )

    def gone(self) -> Gone:
        """That it leaves."""
        return Gone(self.device, self.number)

    def progress(self, task: TaskId, steps: int, paused: str = "") -> Progress:
        """That it is at work, or why it pauses."""
        return Progress(self.device, self.number, task.run, task.round, task.attempt, steps, _text(paused))

    def stopped(self, task: TaskId, steps: int) -> Stopped:
        """That its work on a task has ended before its end."""
        return Stopped(self.device, self.number, task.run, task.round, task.attempt, steps)

    def failed(self, task: TaskId, code: str, detail: str) -> Failed:
        """That it cannot do a task."""
        return Failed(self.device, self.number, task.run, task.round, task.attempt, code, _text(detail))

    def report(self, task: Task, product: Product, upload: BlobRef | None) -> Report:
        """What a task gave."""
        return Report(
            device=self.device,
            session=self.number,
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            examples=weight_of(task, self.examples),
            steps=product.steps,
            upload=upload,
            metrics=dict(product.metrics),
            seconds=dict(product.seconds),
            kept=product.kept,
        )


def _text(words: str) -> str:
    """Words as a message may carry them; a file's name may have half a surrogate."""
    return words[:_DETAIL].encode("utf-8", "replace").decode()


def inline(data: bytes) -> BlobRef:
    """A blob that rides in its message."""
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), data)
