"""A relay adds nothing up: the run is the one without it, and its devices are the parent's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from _levels import NAMES, Agent, at_work, ended, flat, present, soon, working
from _plans import bundle_of
from _scripted import FLEET, Hand, config, play

from coordinator.hub.relay import Relay
from coordinator.service import Coordinator
from edgepfl import wire
from edgepfl.bundle import pack
from edgepfl.bus import Arrived
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.topics import Chunk, FromDevice, Topics
from edgepfl.wire import Gone, Hello, Need, Progress, RollCall

pytestmark = pytest.mark.usefixtures("impatient")

TOPICS = Topics(FLEET)


@asynccontextmanager
async def relaying(root: LoopbackBroker, own: LoopbackBroker) -> AsyncIterator[Relay]:
    relay = Relay(FLEET, LoopbackBus(own, "coordinator"), FLEET, LoopbackBus(root, "relay"))
    serving = asyncio.ensure_future(relay.run())
    try:
        await soon(lambda: serving.done() or (relay._bus._connected and relay._parent_bus._connected))  # type: ignore[attr-defined]  # they are loopback's
        yield relay
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize("name", ["fpfc", "fedamp", "ditto"])
def test_a_relay_changes_nothing(name: str, tmp_path: Path) -> None:
    bundle = bundle_of(name)

    async def scenario() -> None:
        without = await flat(bundle, tmp_path / "flat", NAMES, rounds=2, exact=False)
        root, own = LoopbackBroker(), LoopbackBroker()
        agents = {n: Agent(own if n < "d" else root, n, bundle.plan, tmp_path / "agents") for n in NAMES}
        service = Coordinator(FLEET, LoopbackBus(root, "coordinator"), tmp_path / "root")
        async with at_work(service), working(*agents.values()), relaying(root, own):
            await present(service, *NAMES)
            run = service.start_run(config(rounds=2, goal=6, minimum=1), pack(bundle))
            assert await ended(service, run, agents) == without

    play(scenario())


def test_either_side_may_be_away_for_a_while(tmp_path: Path) -> None:
    bundle = bundle_of("fedavg")

    async def scenario() -> None:
        without = await flat(bundle, tmp_path / "flat", ("ant", "bee"), rounds=3, exact=False)
        root, own = LoopbackBroker(), LoopbackBroker()
        agents = {n: Agent(own, n, bundle.plan, tmp_path / "agents") for n in ("ant", "bee")}
        service = Coordinator(FLEET, LoopbackBus(root, "coordinator"), tmp_path / "root")
        async with at_work(service), working(*agents.values()), relaying(root, own):
            await present(service, "ant", "bee")
            agents["bee"].working.clear()
            run = service.start_run(config(rounds=3, goal=2, minimum=2), pack(bundle))
            await soon(lambda: len(agents["bee"].tasks) == 1)
            root.stop()
            agents["bee"].working.set()
            await soon(lambda: agents["bee"].store.outbox() != [])
            root.start()
            await soon(lambda: service.status(run).round >= 1)
            own.stop()
            own.start()
            assert await ended(service, run, agents) == without

    play(scenario())


def test_chunks_go_both_ways_and_lies_do_not() -> None:
    async def scenario() -> None:
        root, own = LoopbackBroker(), LoopbackBroker()
        above = LoopbackBus(root, "parent")
        for topic_filter in TOPICS.for_coordinator():
            above.subscribe(topic_filter)
        await above.start()
        async with Hand(own, "ant") as ant, Hand(own, "eve") as eve, relaying(root, own) as relay:
            eve.raw("hello", wire.encode(Hello("ant", 9, ("onnx",), 1, 1, "x")))  # in ant's name
            eve.raw("progress", b"nothing")
            data = bytes(range(100))
            sha16 = "ab" * 8
            ant.bus.subscribe(TOPICS.chunks_of(sha16))
            ant.hello()
            ant.say(Need(sha16 * 4, ((0, 1),)))
            ant.bus.publish(TOPICS.build(Chunk("cd" * 8, 3, "ant")), data)
            heard: list[Arrived] = []
            while len(heard) < 3:
                event = await above.receive()
                if isinstance(event, Arrived):
                    heard.append(event)
            assert [event.topic.rsplit("/up/")[1] for event in heard] == [
                "ant/hello", "ant/need", f"ant/blob/{'cd' * 8}.3",
            ]  # fmt: skip
            above.publish(TOPICS.build(Chunk(sha16, 0)), data)
            while True:
                event = await ant.bus.receive()
                if isinstance(event, Arrived) and TOPICS.parse(event.topic) == Chunk(sha16, 0):
                    assert event.payload == data
                    break
            assert relay._sessions == {"ant": 1}
            for k in range(200):
                ant.say(Need(f"{k:016x}" * 4, ()))
            await soon(lambda: f"{199:016x}" in relay._blobs)
            assert len(relay._blobs) == 64
        while True:
            event = await above.receive()
            if isinstance(event, Arrived) and TOPICS.parse(event.topic) == FromDevice("ant", Gone.KIND):
                break
        await above.stop()

    play(scenario())


def test_a_relay_calls_the_roll_when_the_parent_is_back() -> None:
    async def scenario() -> None:
        root, own = LoopbackBroker(), LoopbackBroker()
        async with Hand(own, "ant") as ant, relaying(root, own):
            await ant.next(RollCall)
            root.stop()
            ant.say(Progress("ant", 1, "run", 1, 0, 3))
            root.start()
            await ant.next(RollCall)

    play(scenario())
