"""A coordinator in a process of its own, and what is asked of it, over its deaths and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinator import asking
from coordinator.config import RunConfig
from coordinator.journal import Journal, Status
from coordinator.status import RunStatus
from edgepfl.errors import RunError
from simulators.processes import Command

_AGAIN = 0.1  # seconds between attempts to reach one that is starting
_ATTEMPTS = 600


class Coordination:
    """A coordinator that runs for as long as the context lasts.

    Args:
        url: of its broker.
        fleet: the fleet's name.
        folder: for its settings, log and state.
    """

    def __init__(self, url: str, fleet: str, folder: Path) -> None:
        self.fleet = fleet
        self.state = folder / "coordinator"
        settings = folder / "coordinator.toml"
        self.state.mkdir(parents=True, exist_ok=True)
        settings.write_text(f'fleet = "{fleet}"\nstate = "coordinator"\n[broker]\nurl = "{url}"\n', encoding="utf-8")
        self.process = Command(["coordinator", "--config", str(settings)], folder / "coordinator.log")

    def __enter__(self) -> Self:
        self.process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)

    def restart(self) -> None:
        """End it as a power cut would, and start it again."""
        self.process.kill()
        self.process.start()

    async def start(self, bundle: Path, config: RunConfig) -> str:
        """Begin a run; its id.

        Raises:
            RunError: it does not answer, or says what is wrong.
        """
        return str((await self.ask(asking.Request("start", bundle=str(bundle), config=config))).ok)

    async def stop(self, run: str) -> None:
        """End a run.

        Raises:
            RunError: it is over already, or the coordinator does not answer.
        """
        await self.ask(asking.Request("stop", run=run))

    async def status(self, run: str) -> RunStatus:
        """Where a run stands, with each device.

        Raises:
            RunError: there is no such run, or the coordinator does not answer.
        """
        answer = await self.ask(asking.Request("status", run=run))
        if not isinstance(answer.ok, RunStatus):
            raise RunError("it does not say how it is", where=run)
        return answer.ok

    async def ask(self, request: asking.Request) -> asking.Answer:
        """Its answer, as soon as it gives one.

        Raises:
            RunError: it does not answer, it ended by itself, or it says what is wrong.
        """
        for _ in range(_ATTEMPTS):
            self.process.check()
            try:
                async for answer in asking.ask(self.state, request):
                    return answer
            except RunError as error:
                if not isinstance(error.__cause__, OSError):  # it answered, and said what is wrong
                    raise
            await asyncio.sleep(_AGAIN)
        raise RunError("the coordinator does not answer", where=str(self.state))

    async def follow(self, run: str) -> AsyncIterator[RunStatus]:
        """Each status of a run until its end, over restarts of the coordinator.

        Raises:
            RunError: it ended by itself, or says what is wrong.
        """
        while True:
            try:
                async for answer in asking.ask(self.state, asking.Request("watch", run=run)):
                    if isinstance(answer.ok, RunStatus):
                        yield answer.ok
                        if answer.ok.status != Status.RUNNING:
                            return
            except (RunError, ConnectionError) as error:
                if isinstance(error, RunError) and not isinstance(error.__cause__, OSError):
                    raise
            self.process.check()
            await asyncio.sleep(_AGAIN)

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Its journal, to read in."""
        journal = Journal(self.state / "journal.db")
        try:
            yield journal
        finally:
            journal.close()
