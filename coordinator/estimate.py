"""How many bytes a run will move, before anyone trains.

Messages are made as they will be and measured; tensors have the lengths that the plan and the codec give them.  What is
counted is what :attr:`~coordinator.status.RunStatus.bytes_in` and ``bytes_out`` count: MQTT packets, without TLS and
TCP.  Left out is what nobody can foretell: progress messages of long rounds, repetitions, and whoever comes and goes.

A broadcast leaves the coordinator once, however many devices get it.  What each device gets for itself, and all that
goes up, is multiplied by the cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from coordinator import coded, tasks, updater
from coordinator.admission import runnable
from coordinator.config import RunConfig
from coordinator.estimated import Estimate, Line, total
from edgepfl import codec, wire
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.chunks import WINDOW, chunk_count, digests
from edgepfl.coding import Coding
from edgepfl.plan import Entry, Kind, Plan, Role
from edgepfl.seeds import generator
from edgepfl.topics import Address, Chunk, FromDevice, ToAll, ToDevice, Topics
from edgepfl.tree import Tree, Trees
from edgepfl.wire import BlobRef, Commit, Message, Need, Report, Task

_ACKNOWLEDGED = 4  # bytes of a PUBACK
_SHA = "0" * 64
_USUAL = 1000  # as long on the wire as other usual numbers


def estimate(bundle: Bundle, config: RunConfig, devices: Sequence[str], fleet: str = "fleet") -> Estimate:
    """What a run costs.

    Args:
        bundle: that it begins with.
        config: of the run; its goal is at most the number of devices.
        devices: the fleet's, by name, from which the cohort is chosen.
        fleet: its name.

    Raises:
        EdgepflError: the run would be refused.
    """
    bundle = runnable(bundle)
    algorithm = updater.algorithm_of(bundle.plan, config.hyper)
    coding = coded.check(algorithm, bundle.plan, config.codec)
    counting = _Counting(Topics(fleet), sorted(devices)[: config.goal])
    offered = len(pack(bundle))
    download = len(codec.encode(_zeros(bundle.plan, Role.DOWN)))
    upload = upload_bytes(coding, bundle.plan)
    own = updater.addressed(algorithm)
    messages = _Messages(algorithm, bundle.plan, config, counting.cohort, _ref(offered, riding=0))
    lines = (
        counting.task(messages.task(download), own=own),
        counting.down("download", download, inline=download <= messages.room, own=own),
        counting.report(messages.report(upload)),
        counting.up("upload", upload, inline=upload <= wire.INLINE_LIMIT),
        counting.commit(messages.commit),
    )
    once = counting.down("bundle", offered, inline=False, own=False)
    groups = min(config.rounds, -(-len(devices) // config.goal))
    last = total("last", [lines[0], lines[1], counting.report(messages.report(0)), lines[4]])
    whole = total("round", lines)
    run = total("run", [whole.times(config.rounds), last, _times_sent(once, groups)])
    plan = bundle.plan
    return Estimate(
        algorithm=plan.algorithm,
        model=plan.title,
        codec=config.codec,
        devices=len(devices),
        goal=config.goal,
        rounds=config.rounds,
        upload_exact=coding.plain or coding.size.exact,
        each_its_own=own,
        lines=lines,
        once=once,
        round=whole,
        run=run,
    )


def upload_bytes(coding: Coding, plan: Plan) -> int:
    """How long an upload is: exactly where the codec says so, else that of random changes.

    They are normal numbers, none of them 0, so sparse codecs send all of them, and topk as many as it may.
    """
    if coding.size.exact:
        return coding.size.bytes
    if coding.plain:
        return len(codec.encode(_zeros(plan, Role.UP)))
    return len(coding.encode(_changes(plan), seed=0).data)


def _times_sent(once: Line, groups: int) -> Line:
    """A broadcast that leaves the coordinator for each group of devices that it reaches, and each device once."""
    sent = once.coordinator_out * groups
    return Line(once.what, once.size, sent, once.coordinator_in * groups, once.device_in, once.device_out)


@dataclass(frozen=True)
class _Messages:
    """The messages of a round, as they will be."""

    algorithm: Algorithm
    plan: Plan
    config: RunConfig
    cohort: Sequence[str]
    bundle: BlobRef

    @property
    def room(self) -> int:
        """Bytes of the longest download that rides in the task."""
        return tasks.room_beside(len(self.cohort), self.bundle)

    def task(self, download: int) -> Task:
        """The task, without its download where that rides in it."""
        accepted = dict.fromkeys(self.cohort, self.config.rounds)
        return tasks.make(
            f"{self.config.name}-{_SHA[:8]}",
            self.config,
            self.algorithm,
            self.plan,
            number=self.config.rounds,
            attempt=0,
            cohort=self.cohort,
            accepted=accepted,
            bundle=self.bundle,
            download=_ref(download, self.room),
        )

    def report(self, upload: int) -> Report:
        """A device's report, without its upload where that rides in it; 0 bytes are none."""
        return Report(
            device=self.cohort[0],
            session=_USUAL,
            run=f"{self.config.name}-{_SHA[:8]}",
            round=self.config.rounds,
            attempt=0,
            examples=_USUAL,
            steps=self.config.steps,
            upload=_ref(upload) if upload else None,
            metrics=dict.fromkeys(_metrics(self.plan, evaluated=not upload), 0.5),
            seconds=dict.fromkeys(("load", "evaluate", "train"), 0.5),
            kept=_SHA,
        )

    @property
    def commit(self) -> Commit:
        """That the round is over."""
        return Commit(f"{self.config.name}-{_SHA[:8]}", self.config.rounds, tuple(self.cohort))


@dataclass(frozen=True)
class _Counting:
    """Bytes of packets, for one cohort."""

    topics: Topics
    cohort: Sequence[str]

    def task(self, task: Task, *, own: bool) -> Line:
        """The task: one for all, or one for each."""
        if not own:
            return self._broadcast("task", task)
        one = msgspec.structs.replace(task, cohort=task.cohort[:1])
        size = len(wire.encode(one))
        sent = self._packet(ToDevice(self.cohort[0], Task.KIND), size)
        many = len(self.cohort)
        return Line("task", size, many * sent, many * _ACKNOWLEDGED, sent, _ACKNOWLEDGED)

    def commit(self, commit: Commit) -> Line:
        """The round's end."""
        return self._broadcast("commit", commit)

    def report(self, report: Report) -> Line:
        """Every member's report."""
        size, many = len(wire.encode(report)), len(self.cohort)
        sent = self._packet(FromDevice(self.cohort[0], Report.KIND), size)
        return Line("report", size, many * _ACKNOWLEDGED, many * sent, _ACKNOWLEDGED, sent)

    def down(self, what: str, size: int, *, inline: bool, own: bool) -> Line:
        """A blob for every member, the same for all or each its own: in the task, or in chunks that are asked for."""
        many = len(self.cohort)
        times = many if own else 1
        if inline:
            return Line(what, size, times * size, 0, size, 0)
        chunks = sum(self._packet(Chunk(_SHA[:16], k), part, qos=0) for k, part in enumerate(_parts(size)))
        asked, needs = self._needs(size, FromDevice(self.cohort[0], Need.KIND))
        answered = needs * _ACKNOWLEDGED
        return Line(what, size, times * chunks + many * answered, many * asked, chunks + answered, asked)

    def up(self, what: str, size: int, *, inline: bool) -> Line:
        """A blob of every member: in its report, or in chunks that it is asked for."""
        many, device = len(self.cohort), self.cohort[0]
        if inline:
            return Line(what, size, 0, many * size, 0, size)
        chunks = sum(self._packet(Chunk(_SHA[:16], k, device), part) for k, part in enumerate(_parts(size)))
        asked, needs = self._needs(size, ToDevice(device, Need.KIND))
        answered = chunk_count(size) * _ACKNOWLEDGED
        out, back = asked + answered, chunks + needs * _ACKNOWLEDGED
        return Line(what, size, many * out, many * back, out, back)

    def _broadcast(self, what: str, message: Message) -> Line:
        size = len(wire.encode(message))
        sent = self._packet(ToAll(message.KIND), size)
        return Line(what, size, sent, _ACKNOWLEDGED, sent, _ACKNOWLEDGED)

    def _needs(self, size: int, address: Address) -> tuple[int, int]:
        """Bytes of what is asked to get a blob, and how often: a window first, then halves of it."""
        count = chunk_count(size)
        times = 1 + max(0, -(-(count - WINDOW) // (WINDOW // 2)))
        need = Need(_SHA, ((max(count - WINDOW, 0), count),))
        return times * self._packet(address, len(wire.encode(need))), times

    def _packet(self, address: Address, size: int, qos: int = 1) -> int:
        """Bytes of a PUBLISH: topic, number (QoS 1), no properties, payload."""
        rest = 2 + len(self.topics.build(address)) + 2 * qos + 1 + size
        lengths = max(1, -(-rest.bit_length() // 7))  # 7 bits a byte
        return 1 + lengths + rest


def _ref(size: int, riding: int = wire.INLINE_LIMIT) -> BlobRef:
    """A reference to a blob, without the blob: the bytes of one that rides in its message are counted with the blob."""
    if size <= riding:
        return BlobRef(_SHA, size)
    return BlobRef(_SHA, size, chunks=digests(bytes(size)))


def _parts(size: int) -> list[int]:
    """The lengths of a blob's chunks."""
    return [min(wire.CHUNK, size - at) for at in range(0, size, wire.CHUNK)]


def _zeros(plan: Plan, role: Role) -> Trees:
    return {
        name: Tree({tensor: np.zeros(spec.shape, spec.dtype) for tensor, spec in slot.tensors.items()})
        for name, slot in plan.by_role(role).items()
    }


def _changes(plan: Plan) -> Trees:
    """An upload of random changes."""
    source = generator(0, "estimate")
    return {
        name: tree.map(lambda zeros: np.asarray(source.standard_normal(zeros.shape), zeros.dtype))
        for name, tree in _zeros(plan, Role.UP).items()
    }


def _metrics(plan: Plan, *, evaluated: bool) -> list[str]:
    """The names of what a report tells."""
    graph = plan.graphs.get(Entry.EVALUATE if evaluated else Entry.STEP)
    found = [port.group for port in graph.outputs if port.kind is Kind.METRIC] if graph is not None else []
    if evaluated:
        return [f"{metric}.{model}" for metric in found for model in plan.models]
    return found + list(plan.by_role(Role.TELL))
