"""A device's part in secure aggregation, between the bus and the pure machine of :mod:`edgepfl.secagg.device`.

All secrets are in memory alone.  What goes onto the disk is the number of the last round that this device helped to
open, before it says anything that opens it: of a round that is tried again with other devices, the difference of the
two sums would tell single uploads, so it takes no part in that.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from device_agent.events import TaskId
from device_agent.interpreter import Stopped
from device_agent.store import Store
from device_agent.work import Product
from edgepfl.errors import StoreError, WireError
from edgepfl.wire import SecAgg, Task

if TYPE_CHECKING:
    from edgepfl.secagg import device as machine

log = logging.getLogger(__name__)
CODE = "secagg"
"""The code of a Failed that takes no part in an attempt's secure aggregation."""


class Concealment:
    """One device's: of the task at hand, or of the report that waits.  It is for the agent's event loop.

    Args:
        device: its name.
        store: notes which rounds are opened.
        pool: threads, in which masks are made.
        send: sends a message, if the bus takes it.
        fail: told that the device cannot do a task, and why.
        draw: so many random bytes that nobody can guess.
    """

    def __init__(
        self,
        device: str,
        store: Store,
        pool: Executor,
        send: Callable[[SecAgg], object],
        fail: Callable[[TaskId, str], None],
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._device = device
        self._store = store
        self._pool = pool
        self._send = send
        self._fail = fail
        self._draw = draw
        self._task: TaskId | None = None
        self._state: machine.Device | None = None
        self._ready: asyncio.Future[None] | None = None

    def take_up(self, task: Task | None) -> None:
        """A task came, perhaps again: make keys for it, or say again what was said last."""
        if task is None:
            return
        this = TaskId(task.run, task.round, task.attempt)
        if this == self._task and self._state is not None:
            self._carry_out(self._say_again())
            return
        self.forget()
        if task.secagg is None:
            return
        opened = self._store.fact(_fact(task.run))
        if opened is not None and opened >= task.round:
            self._fail(
                this, f"this device helped to open the sum of round {opened}: with another it would tell uploads"
            )
            return
        from edgepfl.secagg import device as machine  # noqa: PLC0415  it needs cryptography, and few runs do
        from edgepfl.secagg.masks import context  # noqa: PLC0415  likewise

        self._task, self._ready = this, asyncio.get_running_loop().create_future()
        about = context(task.run, task.round, task.attempt)
        self._state, said = machine.begin(self._device, about, self._draw)
        self._carry_out(said)

    def heard(self, message: SecAgg) -> None:
        """The coordinator said something; what is not of this attempt, or of before a restart, means nothing.

        Raises:
            WireError: nothing that a device may be told.
            StoreError: it cannot be noted that a round is opened.
        """
        if self._state is None or TaskId(message.run, message.round, message.attempt) != self._task:
            return
        from edgepfl.secagg import device as machine  # noqa: PLC0415  likewise
        from edgepfl.secagg import messages  # noqa: PLC0415  likewise

        if message.device != self._device:
            raise WireError(f"it is for {message.device}", where=f"a {message.KIND}", reason="other name")
        told = messages.told(message.body, where=f"a {message.KIND}")
        self._state, what = machine.advance(self._state, told, self._draw)
        self._carry_out(what)

    async def conceal(self, task: Task, product: Product) -> Product:
        """The product with its upload masked, as soon as the shares are exchanged.

        Raises:
            Stopped: the task is over.
            CodecError: it cannot be masked.
        """
        if task.secagg is None or product.upload is None:
            return product
        if self._ready is None or TaskId(task.run, task.round, task.attempt) != self._task:
            raise Stopped("the task is over", where=f"round {task.round}")
        await self._ready
        state = self._state
        if state is None:
            raise Stopped("the task is over", where=f"round {task.round}")
        from edgepfl.secagg import device as machine  # noqa: PLC0415  likewise

        vector = np.frombuffer(product.upload, f"<u{task.secagg.bits // 8}")
        self._state = replace(state, masked=True)  # before the thread begins: none may mask another vector meanwhile
        _, hidden = await asyncio.get_running_loop().run_in_executor(self._pool, machine.mask, state, vector)
        return replace(product, upload=hidden.tobytes())

    def forget(self, task: TaskId | None = None) -> None:
        """Forget all secrets of a task; of any task, if none is named."""
        if task is not None and task != self._task:
            return
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(Stopped("the task is over"))
            self._ready.exception()  # perhaps nobody waits for it
        self._task = self._state = self._ready = None

    def _say_again(self) -> machine.Do:
        from edgepfl.secagg import device as machine  # noqa: PLC0415  likewise
        from edgepfl.secagg.messages import Ask  # noqa: PLC0415  likewise

        return None if self._state is None else machine.advance(self._state, Ask(), self._draw)[1]

    def _carry_out(self, what: machine.Do) -> None:
        from edgepfl.secagg import device as machine  # noqa: PLC0415  likewise
        from edgepfl.secagg import messages  # noqa: PLC0415  likewise

        if self._task is None:
            return
        match what:
            case machine.Say(body):
                self._say(messages.encode(body))
            case machine.Reveal(body):
                self._reveal(self._task, messages.encode(body))
            case machine.Ready() if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            case machine.Refuse(why):
                log.warning("%s: secure aggregation of round %d: %s", self._device, self._task.round, why)
                self._fail(self._task, why)
            case _:
                pass

    def _reveal(self, task: TaskId, body: bytes) -> None:
        try:
            self._store.note(_fact(task.run), task.round)
        except StoreError as error:
            if not error.full:
                raise
            log.error("%s: the sum of round %d is not opened: %s", self._device, task.round, error)  # noqa: TRY400  told
            return
        self._say(body)

    def _say(self, body: bytes) -> None:
        if self._task is not None:
            self._send(SecAgg(self._device, self._task.run, self._task.round, self._task.attempt, body))


def _fact(run: str) -> str:
    """Under which name the store notes the last opened round of a run."""
    return f"opened {run}"
