"""Many scripted devices on one connection, each with a large upload: they speak the wire and train nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from edgepfl import codec, wire
from edgepfl.bus import Arrived, Connected
from edgepfl.bus._window import digests
from edgepfl.bus.mqtt import MqttBus, MqttSettings
from edgepfl.plan import Plan, Role
from edgepfl.topics import Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.tree import Tree
from edgepfl.wire import CHUNK, BlobRef, Hello, Message, Need, Report, RollCall, Task


class Crowd:
    """Devices of one bundle; each upload differs from all others in its first number.

    Args:
        url: the broker's.
        fleet: the fleet's name.
        names: the devices'.
        plan: of the bundle.
        tasked: called before the first report on a task.

    Attributes:
        published: chunks.
    """

    def __init__(
        self, url: str, fleet: str, names: tuple[str, ...], plan: Plan, tasked: Callable[[], object] = lambda: None
    ) -> None:
        self._topics = Topics(fleet)
        self._names, self._tasked = names, tasked
        source = np.random.default_rng(0)
        self._trees = {
            name: Tree(
                {each: source.standard_normal(spec.shape, np.float32) / 10 for each, spec in slot.tensors.items()}
            )
            for name, slot in plan.by_role(Role.UP).items()
        }
        self.published = 0
        self._bus = MqttBus(MqttSettings(url, "crowd", max_queued=100_000, max_queued_bytes=1 << 30, max_inflight=64))
        for topic_filter in (f"edgepfl/1/{fleet}/down/+/+", f"edgepfl/1/{fleet}/all/+"):
            self._bus.subscribe(topic_filter)

    async def serve(self) -> None:
        """Take part in rounds until cancelled."""
        await self._bus.start()
        try:
            while True:
                match await self._bus.receive():
                    case Connected():
                        self._greet(self._names)
                    case Arrived(topic, payload):
                        self._heard(topic, payload)
        finally:
            await self._bus.stop()

    def _heard(self, topic: str, payload: bytes) -> None:
        address = self._topics.parse(topic)
        assert isinstance(address, ToDevice | ToAll)
        device = address.device if isinstance(address, ToDevice) else ""
        match wire.decode(payload, where=topic):
            case RollCall():
                self._greet((device,) if device else self._names)
            case Task() as task:
                self._tasked()
                for member in task.cohort:
                    self._report(task, member.device)
            case Need() as need:
                self._supply(device, need)

    def _greet(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._say(name, Hello(name, 1, ("onnx",), 5, 512, "test"))

    def _report(self, task: Task, device: str) -> None:
        upload = None
        if not task.final:
            data = self._upload(device)
            inline = data if len(data) <= wire.INLINE_LIMIT else b""
            upload = BlobRef(hashlib.sha256(data).hexdigest(), len(data), inline, b"" if inline else digests(data))
        steps, zeros = task.steps, "0" * 64
        self._say(
            device, Report(device, 1, task.run, task.round, task.attempt, 5, steps, upload, {"loss": 1.0}, {}, zeros)
        )

    def _supply(self, device: str, need: Need) -> None:
        data = self._upload(device)
        for start, stop in need.ranges:
            for index in range(start, stop):
                topic = self._topics.build(Chunk(need.sha256[:16], index, device))
                assert self._bus.publish(topic, data[index * CHUNK : (index + 1) * CHUNK])
                self.published += 1

    def _upload(self, device: str) -> bytes:
        """A device's own: made again whenever it is asked for, because all of them together would be gigabytes."""
        first = next(iter(self._trees.values()))
        tensor = first[next(iter(first))]
        tensor.flat[0] = self._names.index(device) / len(self._names)
        return codec.encode(self._trees)

    def _say(self, device: str, message: Message) -> None:
        assert self._bus.publish(self._topics.build(FromDevice(device, message.KIND)), wire.encode(message))
