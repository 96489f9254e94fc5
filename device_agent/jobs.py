"""The jobs of one agent: tasks that are carried out in threads, from their materials to a result that is stored.

At most one job is the current one.  Others are on their way out: they were told to stop, and are in a step still.  What
comes of those is neither kept nor told, but for the end itself, where the coordinator waits to hear of it.

All this runs in the agent's event loop; only what the workshop does, and a job's ``on_step`` with it, is in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from device_agent.checkpoint import Saver
from device_agent.data import Examples
from device_agent.interpreter import Stopped
from device_agent.messages import Speaker
from device_agent.place import Place
from device_agent.session import Event, TaskId, Worked, WorkFailed, task_id
from device_agent.work import Job, Materials, Product, Workshop
from edgepfl.errors import EdgepflError
from edgepfl.wire import BlobRef, Message, Report, Task

log = logging.getLogger(__name__)


class Jobs:
    """One device's; its length is the number of jobs that have not ended, those that are about to stop among them.

    Args:
        speaker: words the messages.
        place: gives materials, and stores results.
        examples: the device's data.
        workshop: does tasks.
        pool: threads for tasks.
        checkpoint_seconds: of training between two checkpoints; 0 for none.
        clock: seconds that never go back.
        offer: offers a long upload to the coordinator, see ``Transfers.offer``.
        most: bytes of the longest message that the bus takes now.
        facts: what becomes true with a result, see ``Store.fact``.
        feed: told how the current job ended, Worked or WorkFailed.
        send: sends a message, if the bus takes it.
        fail: told of a fault that is not the task's, and must end the agent.
        conceal: masks the upload of a task of secure aggregation.
    """

    def __init__(
        self,
        speaker: Speaker,
        place: Place,
        examples: Examples,
        workshop: Workshop,
        pool: Executor,
        *,
        checkpoint_seconds: float,
        clock: Callable[[], float],
        offer: Callable[[bytes], BlobRef],
        most: Callable[[], int],
        facts: Callable[[], Mapping[str, int]],
        feed: Callable[[Event], None],
        send: Callable[[Message], object],
        fail: Callable[[BaseException], None],
        conceal: Callable[[Task, Product], Awaitable[Product]],
    ) -> None:
        self._speaker = speaker
        self._place = place
        self._examples = examples
        self._workshop = workshop
        self._pool = pool
        self._checkpoint_seconds = checkpoint_seconds
        self._clock = clock
        self._offer = offer
        self._most = most
        self._facts = facts
        self._feed = feed
        self._send = send
        self._fail = fail
        self._conceal = conceal
        self._current: Job | None = None
        self._jobs: dict[asyncio.Task[None], Job] = {}  # also those that are about to stop
        self._awaited: set[TaskId] = set()  # of which the coordinator waits to hear that they have ended

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def current(self) -> Job | None:
        """The job whose result is wanted; it may rest."""
        return self._current

    @property
    def steps(self) -> int:
        """How many steps of the current job are done."""
        return self._current.steps if self._current is not None else 0

    # What may be asked of them.

    def start(self, task: Task) -> None:
        """Do a task, whose blobs are here; it takes the place of the current one."""
        job = self._current = Job(task)
        work = asyncio.get_running_loop().create_task(self._work(job), name=f"{self._speaker.device} {task.round}")
        self._jobs[work] = job
        work.add_done_callback(self._ended)

    def stop(self, task: TaskId) -> None:
        """Let the current job end at the next step's boundary without a result, if it is on this task."""
        if self._current is not None and task_id(self._current.task) == task:
            self._current.stop.set()
            self._current = None

    def pause(self) -> None:
        """Let the current job pause with a checkpoint, and its thread be free for others."""
        if self._current is not None:
            self._current.rest.set()

    def resume(self) -> None:
        """Let the current job go on, from its checkpoint if its thread has left it."""
        job = self._current
        if job is None:
            return
        if job.resting:
            self.start(job.task)
        else:
            job.rest.clear()

    def will_say_stopped(self, task: TaskId) -> bool:
        """Whether work on a task has not ended yet: then Stopped is sent as soon as it has."""
        if not self._at_work(task):
            return False
        self._awaited.add(task)
        return True

    def abandon(self) -> None:
        """Let all end at the next step's boundary, with nothing kept of any."""
        self._current = None
        for job in self._jobs.values():
            job.stop.set()

    async def close(self) -> None:
        """Let all end at the next step's boundary, the current one with a checkpoint, and wait until they have."""
        current, self._current = self._current, None  # what is finished from now on is not kept: it will be done again
        for job in self._jobs.values():
            (job.rest if job is current else job.stop).set()
        if self._jobs:
            await asyncio.wait(self._jobs)

    # What becomes of them.

    def _at_work(self, task: TaskId) -> bool:
        return any(task_id(job.task) == task for job in self._jobs.values())

    def _ended(self, work: asyncio.Task[None]) -> None:
        job = self._jobs.pop(work)
        this = task_id(job.task)
        if this in self._awaited:
            self._awaited.discard(this)
            if not self._at_work(this):  # else it was told to work on it anew
                self._send(self._speaker.stopped(this, job.steps))
        if not work.cancelled() and (error := work.exception()) is not None:
            self._fail(error)

    async def _work(self, job: Job) -> None:
        task, this = job.task, task_id(job.task)
        loop = asyncio.get_running_loop()
        try:
            materials = self._materials(job)
            product = await loop.run_in_executor(self._pool, self._workshop.perform, task, materials, job.on_step)
            if task.secagg is not None and job is self._current:
                product = await self._conceal(task, product)
            if job is self._current:
                self._keep(task, product)
        except Stopped:
            log.info("%s: stopped work on round %d", self._speaker.device, task.round)
            job.resting = job is self._current
            if job.resting and not job.rest.is_set():  # its conditions were met again, before it even noticed
                self.start(task)
            return
        except Exception as error:
            if job is not self._current:  # its blobs may be deleted already
                return
            known = isinstance(error, EdgepflError)  # else a fault of ours or of a data plug-in: not of the service
            log.warning("%s: round %d failed: %s", self._speaker.device, task.round, error, exc_info=not known)
            self._current = None
            self._feed(WorkFailed(this, type(error).__name__, str(error)))
            return
        if job is self._current:
            self._current = None
            self._feed(Worked(this))

    def _materials(self, job: Job) -> Materials:
        task, fetched = job.task, self._place.fetched
        return Materials(
            device=self._speaker.device,
            examples=self._examples.of_round(task.round),
            bundle=lambda: fetched.read(task.bundle.sha256),
            download=lambda: fetched.read(task.download.sha256),
            keep=self._place.store.keep(task.run).data,
            saver=self._saver(job),
        )

    def _saver(self, job: Job) -> Saver | None:
        file = self._place.checkpoint
        if file is None:
            return None
        return Saver(file, self._checkpoint_seconds, resting=job.rest.is_set, over=job.stop.is_set, clock=self._clock)

    def _keep(self, task: Task, product: Product) -> None:
        """Store a result; the KEEP slots and the report that goes with them in one transaction."""

        def report(upload: BlobRef | None) -> Report:
            return self._speaker.report(task, product, upload)

        self._place.keep(task, product, offer=self._offer, report=report, facts=self._facts(), most=self._most())
        log.info("%s: round %d of %s is done, %d steps", self._speaker.device, task.round, task.run, product.steps)
