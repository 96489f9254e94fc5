"""Coordinator's and agents' machines against each other, over a bus that loses, repeats and reorders, in virtual time.

Training is a hash: what a device keeps after a round follows from what it kept before, the round and the server's
state, so an update that is counted twice, lost, or trained from the wrong state changes every digest after it.

A message is lost only together with its connection, as over MQTT at QoS 1: the device then connects anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from _coordinator import Coordinator
from _device import Agent
from _faulty import CALM, Faults, World

from coordinator.config import RunConfig
from coordinator.journal import Journal
from coordinator.rounds import Policy
from device_agent import session
from edgepfl import wire
from edgepfl.wire import Message, Task


class Scene:
    """One coordinator and its devices among faults."""

    def __init__(self, faults: Faults, seed: int, *, devices: int = 4, goal: int = 3, minimum: int = 2) -> None:
        self.world = World(faults, seed)
        names = tuple(f"pi-{number}" for number in range(devices))
        policy = Policy(goal, minimum, gather=4.0, deadline=60.0, lease=8.0)
        self.coordinator = Coordinator(self.world, Journal(Path(":memory:")), self._down, names, policy)
        self.agents: dict[str, Agent] = {}
        for name in names:
            self.agents[name] = Agent(self.world, name, self._up)
        self._every(0.5, self._tick)
        if faults.agent:
            self._every(faults.agent, lambda: self.world.random.choice(list(self.agents.values())).start())
        if faults.coordinator:
            self._every(faults.coordinator, self._power_cut)

    def train(self, run: str, rounds_: int) -> str:
        """One run to its end; its status."""
        config = RunConfig(name=run, rounds=rounds_, seed=self.world.random.getrandbits(32), attempts=6)
        self.coordinator.begin(run, config)
        self.world.run(lambda: self.coordinator.up and self.coordinator.row is None, limit=self.world.now + 1e5)
        row = self.coordinator.journal.run(run)
        assert row is not None
        return row.status

    def heal(self) -> None:
        """The network is whole again, and everyone connects anew."""
        self.world.faults = CALM
        for agent in self.agents.values():
            agent.feed(session.Connected())
        end = self.world.now + 300.0
        self.world.run(lambda: self.world.now >= end, limit=end + 10.0)

    def _tick(self) -> None:
        for agent in self.agents.values():
            agent.tick()
        if self.coordinator.up:
            self.coordinator.tick()

    def _power_cut(self) -> None:
        """The coordinator is away for some seconds."""
        if self.world.faults is not CALM and self.coordinator.up:
            self.coordinator.up = False
            self.world.after(self.world.random.uniform(0.0, 5.0), self._power_on)

    def _power_on(self) -> None:
        self.coordinator.up = True
        self.coordinator.restart()

    def _every(self, seconds: float, what: Callable[[], object]) -> None:
        def again() -> None:
            what()
            self.world.after(seconds, again)

        self.world.after(seconds, again)

    def _down(self, device: str, message: Message) -> None:
        """What a coordinator sends: a device that is being started when it comes does not get it."""
        if isinstance(message, Task | wire.Commit | wire.Cancel | wire.RollCall):
            agent = self.agents[device]
            self.world.send(lambda: agent.receive(message), agent.disconnect)

    def _up(self, device: str, message: Message) -> None:
        def deliver() -> None:
            if self.coordinator.up:
                self.coordinator.receive(device, message)

        self.world.send(deliver, lambda: self.agents[device].disconnect() if device in self.agents else None)
