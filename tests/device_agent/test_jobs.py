"""Jobs that pause and go on, in the moments that no message on a bus could hit."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _hand import DEVICE, PATIENCE, examples, play, until
from _tasks import task

from device_agent.interpreter import Stopped
from device_agent.jobs import Jobs
from device_agent.messages import Speaker
from device_agent.place import Place
from device_agent.runners.onnx import OnnxRunner
from device_agent.session import Event, Worked, task_id
from device_agent.work import Materials, Product, Workshop
from edgepfl import wire
from edgepfl.wire import BlobRef, Task


class Paced(Workshop):
    """A workshop whose first task ends at a step's boundary, once it is told to go there."""

    def __init__(self) -> None:
        super().__init__(OnnxRunner)
        self.begun, self.go, self.left = threading.Event(), threading.Event(), threading.Event()
        self.starts = 0

    def perform(self, task: Task, materials: Materials, on_step: Callable[[int], None]) -> Product:  # noqa: ARG002  the workshop's
        self.starts += 1
        if self.starts == 1:
            self.begun.set()
            assert self.go.wait(PATIENCE)
            try:
                on_step(0)
            except Stopped:
                self.left.set()
                raise
        return Product(b"kept", hashlib.sha256(b"kept").hexdigest(), None, None, task.steps, {}, {})


def no_upload(data: bytes) -> BlobRef:
    raise AssertionError(f"nobody offers {len(data)} bytes")


async def nothing_hidden(task: Task, product: Product) -> Product:
    raise AssertionError(f"nobody hides {len(product.upload or b'')} bytes of round {task.round}")


def fault(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("before", ["noticed", "unnoticed"])
def test_a_pause_that_is_over_leads_to_the_result_whether_or_not_the_loop_had_noticed_it(
    tmp_path: Path, before: str
) -> None:
    workshop, told, said = Paced(), list[Event](), list[wire.Message]()

    async def scenario(place: Place, pool: ThreadPoolExecutor) -> None:
        jobs = Jobs(
            Speaker(DEVICE, 1, workshop.runtime, examples().count, 1, 1, 1024),
            place,
            examples(),
            workshop,
            pool,
            checkpoint_seconds=0.0,
            clock=lambda: 0.0,
            offer=no_upload,
            most=lambda: wire.MESSAGE_LIMIT,
            facts=dict,
            feed=told.append,
            send=said.append,
            fail=fault,
            conceal=nothing_hidden,
        )
        jobs.start(task())
        assert await asyncio.to_thread(workshop.begun.wait, PATIENCE)
        jobs.pause()
        workshop.go.set()
        assert workshop.left.wait(PATIENCE)  # the loop stands still, and does not see that the thread has ended
        if before == "noticed":
            await until(lambda: jobs.current is not None and jobs.current.resting)
            assert (len(jobs), workshop.starts, told) == (0, 1, [])
        jobs.resume()
        await until(lambda: bool(told))
        assert (told, workshop.starts, jobs.current) == ([Worked(task_id(task()))], 2, None)
        assert [(each.run, each.round) for each in place.store.outbox()] == [("run", 1)]
        await jobs.close()
        assert (len(jobs), said) == (0, [])

    place = Place.open(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        play(scenario(place, pool))
    place.store.close()
