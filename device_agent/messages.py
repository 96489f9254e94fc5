"""What an agent says of itself, as messages."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import edgepfl
from device_agent.session import TaskId
from device_agent.work import Product
from edgepfl.wire import BlobRef, Failed, Gone, Hello, Progress, Report, Task

_MIB = 1 << 20
_DETAIL = 256  # characters of the reason of a failure


@dataclass(frozen=True)
class Speaker:
    """One start of one device's agent.

    Attributes:
        device: its name.
        number: of the session, new at every start.
        runtime: what it runs graphs with.
        examples: how many it trains on.
    """

    device: str
    number: int
    runtime: str
    examples: int

    def hello(self, pending: TaskId | None) -> Hello:
        """That it is here, and whether a report waits."""
        return Hello(
            device=self.device,
            session=self.number,
            runtimes=(self.runtime,),
            examples=self.examples,
            memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
            agent=edgepfl.__version__,
            pending=(pending.run, pending.round) if pending else ("", -1),
        )

    def gone(self) -> Gone:
        """That it leaves."""
        return Gone(self.device, self.number)

    def progress(self, task: TaskId, steps: int) -> Progress:
        """That it is at work."""
        return Progress(self.device, self.number, task.run, task.round, task.attempt, steps)

    def failed(self, task: TaskId, code: str, detail: str) -> Failed:
        """That it cannot do a task."""
        text = detail[:_DETAIL].encode("utf-8", "replace").decode()  # a file's name may have half a surrogate
        return Failed(self.device, self.number, task.run, task.round, task.attempt, code, text)

    def report(self, task: Task, product: Product, upload: BlobRef | None) -> Report:
        """What a task gave."""
        return Report(
            device=self.device,
            session=self.number,
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            examples=self.examples,
            steps=product.steps,
            upload=upload,
            metrics=dict(product.metrics),
            seconds=dict(product.seconds),
            kept=product.kept,
        )


def inline(data: bytes) -> BlobRef:
    """A blob that rides in its message."""
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), data)
