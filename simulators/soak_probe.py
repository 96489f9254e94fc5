"""How long a control message takes: a client beside the fleet that asks again and again.

It is a process of its own, ``python -m simulators.soak_probe URL FLEET RUN``: what it measures is then the broker's and
the coordinator's time, and not that of the fleet's process, in which a thousand devices wait for each other.  It prints
a line for each question, ``echo SECONDS``, ``control SECONDS`` or ``unanswered 0``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict

from edgepfl import wire
from edgepfl.bus import Arrived, Connected, Disconnected
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.errors import WireError
from edgepfl.topics import FromDevice, ToDevice, Topics
from edgepfl.wire import Commit, Message, Report, RollCall

NAME = "soak-probe"
PATIENCE = 10.0  # seconds until an answer counts as lost
PAUSE = 0.5  # seconds between two questions


class Probe:
    """A client that measures two ways.

    The echo goes over the broker and back.  The control message is a report of a round that is over, from a device
    that was not in it: the coordinator answers with its verdict, and nothing changes.

    Args:
        url: the broker's.
        fleet: the fleet's name.
        run: that has committed a round.
    """

    def __init__(self, url: str, fleet: str, run: str) -> None:
        self._topics = Topics(fleet)
        self._run = run
        self._bus = MqttBus(MqttSettings(url, NAME))
        self._bus.subscribe(self._topics.for_device(NAME)[0])
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._up = asyncio.Event()
        self._asked = 0

    async def ask(self) -> None:
        """Ask until cancelled."""
        await self._bus.start()
        listening = asyncio.create_task(self._listen(), name="probe listens")
        try:
            while True:
                await self._up.wait()
                await self._time("echo", self._echo())
                await self._time("control", self._report())
                await asyncio.sleep(PAUSE)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self._bus.stop()

    def _echo(self) -> tuple[str, Message]:
        self._asked += 1
        return self._topics.build(ToDevice(NAME, RollCall.KIND)), RollCall(self._asked)

    def _report(self) -> tuple[str, Message]:
        self._asked += 1
        report = Report(NAME, self._asked, self._run, 1, 0, 0, 0, None, {}, {}, "0" * 64)
        return self._topics.build(FromDevice(NAME, Report.KIND)), report

    async def _time(self, what: str, question: tuple[str, Message]) -> None:
        topic, message = question
        loop = asyncio.get_running_loop()
        while not self._answers.empty():  # late ones
            self._answers.get_nowait()
        began = loop.time()
        if not self._bus.publish(topic, wire.encode(message)):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not _answers(message, await self._answers.get()):
                    pass
            _tell(what, loop.time() - began)
            return
        _tell("unanswered", 0.0)

    async def _listen(self) -> None:
        while True:
            match await self._bus.receive():
                case Connected():
                    self._up.set()
                case Disconnected():
                    self._up.clear()
                case Arrived(topic, payload):
                    with contextlib.suppress(WireError):
                        self._answers.put_nowait(wire.decode(payload, where=topic))


def _answers(asked: Message, answer: Message) -> bool:
    if isinstance(asked, RollCall):
        return answer == asked
    return isinstance(answer, Commit)


def _tell(what: str, seconds: float) -> None:
    print(what, seconds, flush=True)


class ProbeProcess:
    """A probe in a process of its own, started once there is a run to ask about.

    Args:
        url: the broker's.
        fleet: the fleet's name.

    Attributes:
        told: the seconds that it measured, by what: "echo", "control" or "unanswered".
    """

    def __init__(self, url: str, fleet: str) -> None:
        self._url, self._fleet = url, fleet
        self.told: dict[str, list[float]] = defaultdict(list)
        self.run: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def listen(self) -> None:
        """Take what it tells, until cancelled."""
        words = [sys.executable, "-m", __name__, self._url, self._fleet, await self.run]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        try:
            if process.stdout is None:
                raise AssertionError("a pipe was asked for")
            async for line in process.stdout:
                what, seconds = line.split()
                self.told[what.decode()].append(float(seconds))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Probe(*sys.argv[1:4]).ask())
