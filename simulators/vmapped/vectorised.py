"""A federation whose cohorts are computed as a whole: the coordinator's state, and every device's KEEP slots."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from coordinator import cohort as cohorts
from coordinator import updater
from coordinator.config import RunConfig
from coordinator.privacy import agreement
from coordinator.privacy.release import Bounded, public
from coordinator.reduction import Reduction, Upload
from device_agent.data import Examples
from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from edgepfl.plan import Role
from edgepfl.seeds import derive, generator
from edgepfl.tree import Tree, Trees
from exporters.admission import admit
from exporters.binding import Binding
from exporters.model import Model
from simulators.federation import Setting
from simulators.vmapped import chunk as chunks
from simulators.vmapped import evaluation, training
from simulators.vmapped.chunk import Start
from simulators.vmapped.evaluation import Evaluated
from simulators.vmapped.folder import Folder, Identity, Row
from simulators.vmapped.graphs import Graphs
from simulators.vmapped.kept import Places, keeping
from simulators.vmapped.pool import Pool
from simulators.vmapped.population import Fitted
from simulators.vmapped.private import Veil
from simulators.vmapped.training import Numbers, Trained

MOST = {"cpu": 64, "cuda": 4096}
"""Devices in a chunk: on a processor what still fits its caches, on a GPU what keeps it busy."""

ROOM = {"cpu": 1 << 28, "cuda": 1 << 32}
"""Bytes that a chunk's tensors may take, as estimated by :func:`chunk_for`."""


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        number: of the round, from 1.
        devices: whose reports count, in the order of their names.
        steps: minibatch steps that each took.
        metrics: the mean loss over each device's minibatches and what it tells, ``(devices,)`` each.
        seconds: that it took.
    """

    number: int
    devices: tuple[str, ...]
    steps: int
    metrics: Mapping[str, Numbers]
    seconds: float

    @property
    def row(self) -> Row:
        """For people: means over the devices."""
        means = {name: float(values.mean()) for name, values in self.metrics.items()}
        return Row(self.number, len(self.devices), self.steps, self.seconds, means)


class Vectorised:
    """The coordinator's state and every device's KEEP slots, moved round by round.

    What it computes is what :class:`simulators.federation.InProcess` computes with the exported graphs, device by
    device: the same minibatches, noise, padding, reduction and update.

    Args:
        algorithm: its runtime hyperparameters are those of the run, unless ``setting`` has others.
        model: its parameters are the initial model.
        devices: each device's data; any mapping, so one that makes them when they are asked for, too.
        setting: how to train; it has no codec.
        chunk: how many devices to compute at once; 0 for what suits processor and memory.
        device: where to compute ("cpu", "cuda").
        threads: chunks to compute at the same time, each on one core.
        folder: a directory for the run's state, which it goes on from; None keeps everything in memory.
        data: what the examples are, in words; a folder refuses to go on with others.
        private: settings of a private run that would do the same on real devices; None for one that is not private.

    Raises:
        ConfigError: a setting is impossible, or the folder holds another run.
        ExportError: the model or the algorithm cannot be run for many devices at once.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        devices: Mapping[str, Examples],
        setting: Setting = Setting(),  # noqa: B008  it is frozen
        *,
        chunk: int = 0,
        device: str = "cpu",
        threads: int = 1,
        folder: Path | None = None,
        data: str = "",
        private: RunConfig | None = None,
    ) -> None:
        _check(devices, setting, chunk, threads)
        admit(model)
        self.setting, self._device = setting, device
        self._graphs = Graphs(Binding(algorithm, model), device)
        self.plan = self._graphs.plan
        self.algorithm = agreement.tailored(updater.algorithm_of(self.plan, setting.hyper), private or RunConfig())
        self.veil = None if private is None else Veil(private, self.algorithm, self.plan, setting.seed)
        self.names = tuple(sorted(devices))
        self._places = {name: place for place, name in enumerate(self.names)}
        self._examples = Fitted(devices, self.plan)
        first = model.parameters
        self._model = first.map(lambda tensor: tensor.to(device))
        self.chunk = chunk or chunk_for(self._graphs, device)
        self.folder = Folder(folder, self._identity(first, data)) if folder is not None else None
        kept = self.plan.by_role(Role.KEEP)
        self._keep = keeping(kept, self.names, folder / "keep" if folder is not None else None)
        self._pool = Pool(threads)
        self.number = 0
        self.server = self._opened(first)

    def _opened(self, model: Tree) -> Trees:
        """The server's state: where the run stands, or before its first round."""
        found = self.folder.load(self._device) if self.folder is not None else None
        if found is not None and self.folder is not None:
            self.number = self.folder.number
            self._keep.commit(self.number)  # what a killed process did not get to, or should not have begun
            return found
        state = updater.first_state(self.algorithm, self.plan, model.map(torch.Tensor.numpy), self._device)
        if self.folder is not None:
            self.folder.commit(0, state)
            self._keep.commit(0)
        return state

    @property
    def state(self) -> Trees:
        """The server's state as NumPy trees of their own: the next round may change the server's in place."""
        return {slot: tree.map(np.copy) for slot, tree in updater.numpy_of(self.server).items()}

    @property
    def tuned(self) -> Algorithm:
        """The algorithm of the next round."""
        return updater.of_round(
            self.algorithm, self.plan, number=self.number + 1, seed=self.setting.seed, decay=self.setting.decay
        )

    def choose(self, count: int) -> tuple[str, ...]:
        """The next round's cohort: the devices that a coordinator would choose of those that are all there."""
        return cohorts.choose(self.names, count, self.setting.seed, self.number + 1)

    def cohort(self, count: int) -> tuple[str, ...]:
        """The next round's cohort of a run that may be private; then its sampling says how many."""
        return self.choose(count) if self.veil is None else self.veil.choose(self.names, self.number + 1)

    def round(self, cohort: Sequence[str], steps: int | None = None, *, last: bool = False) -> Round:
        """Train the cohort, fold its uploads, update the state; all of it or, on an error or a kill, nothing on disk.

        Args:
            cohort: devices, each once.
            steps: minibatch steps of each; those of the run unless given.
            last: whether it is the run's last that trains, after which some methods conclude.

        Raises:
            ConfigError: the cohort has no device, one twice, or one that the fleet does not have.
            GraphFailed: a device's numbers are not finite.
            RunError: the new state is not finite.
        """
        began = time.perf_counter()
        devices, tuned, number = _checked(cohort), self.tuned, self.number + 1
        taken = tuned.local_steps(self.setting.steps, generator(self.setting.seed, "coins", number))
        taken = taken if steps is None else steps
        reduction = self._empty(tuned, devices)
        self._keep.discard()  # what a round that failed has left
        metrics: list[Mapping[str, Numbers]] = []

        def train(given: tuple[Start, int]) -> Trained:
            return training.train(self._graphs, self._model, given[0], taken)

        for (start, count), trained in self._pool.map(train, self._starts(devices, tuned)):
            self._fold(reduction, start, trained, count, taken)
            metrics.append({name: values[:count] for name, values in trained.metrics.items()})
        got = reduction.close(devices, number=number, fleet=self.names, statistics=self.plan.statistics)
        memory: Trees = {}
        if self.veil is not None and isinstance(reduction, Bounded):
            got, memory = self.veil.blurred(got, self.server, reduction.below)
        server = {**updater.next_state(tuned, public(self.server), got, last=last), **memory}
        means = {name: np.concatenate([each[name] for each in metrics]) for name in metrics[0]}
        done = Round(number, devices, taken, means, time.perf_counter() - began)
        if self.folder is not None:
            self.folder.commit(number, server, done.row)
        self._keep.commit(number)
        self.server, self.number = server, number
        return done

    def evaluate(self, devices: Sequence[str] | None = None) -> Evaluated:
        """How good devices' models are; of the whole fleet unless some are named.  It changes nothing.

        Raises:
            ConfigError: the fleet has no such device, or one is named twice.
            GraphFailed: a device's numbers are not finite.
        """
        asked = _checked(self.names if devices is None else devices)

        def judge(given: tuple[Start, int]) -> Evaluated:
            return evaluation.evaluate(self._graphs, self._model, *given, self.setting.tune_steps)

        return evaluation.joined([found for _, found in self._pool.map(judge, self._starts(asked, self.tuned))])

    def kept(self, device: str) -> Trees | None:
        """A device's KEEP slots, NumPy; None before its first round."""
        trees, present = self._keep.read(np.array([self._places[device]]))
        if not present[0]:
            return None
        return {slot: tree.map(lambda rows: rows[0]) for slot, tree in trees.items()}

    def close(self) -> None:
        """End the threads, and leave the folder to others."""
        self._pool.close()
        if self.folder is not None:
            self.folder.close()

    def _starts(self, devices: Sequence[str], tuned: Algorithm) -> Iterator[tuple[Start, int]]:
        """The devices in chunks of one size, and how many of a chunk count.

        One size, because a graph is written for each: the last chunk is filled with its last device, again and again.
        """
        parts = math.ceil(len(devices) / self.chunk)
        size = math.ceil(len(devices) / parts)
        for begin in range(0, len(devices), size):
            part = devices[begin : begin + size]
            yield self._start((*part, *[part[-1]] * (size - len(part))), tuned), len(part)

    def _start(self, devices: tuple[str, ...], tuned: Algorithm) -> Start:
        number, down = self.number + 1, self._down(devices, tuned)
        shared, addressed = down
        keep, present = self._keep.read(self._of(devices))
        seed = derive(self.setting.seed, "round", number)
        return Start(
            devices=devices,
            examples=tuple(self._examples[device].of_round(number) for device in devices),
            seeds=tuple(derive(seed, device) for device in devices),
            hyper={name: float(getattr(tuned, name)) for name in self.plan.hyper},
            shared=shared,
            addressed=addressed,
            keep=updater.torch_of(keep, self._device),
            fresh=torch.from_numpy(~present).to(self._device),
            number=number,
        )

    def _down(self, devices: Sequence[str], tuned: Algorithm) -> tuple[Trees, Trees]:
        """The DOWN slots: those that are everyone's, and those of which each device has its own, devices first."""
        own = [name for name, slot in self.plan.by_role(Role.DOWN).items() if slot.addressed]
        with torch.no_grad():
            sent = tuned.send_each(self.server, devices if own else devices[:1])
            shared = {name: tree for name, tree in sent[devices[0]].items() if name not in own}
            addressed = {
                name: Tree({key: torch.stack([sent[each][name][key] for each in devices]) for key in tree})
                for name, tree in sent[devices[0]].items()
                if name in own
            }
        return shared, addressed

    def _empty(self, tuned: Algorithm, devices: tuple[str, ...]) -> Reduction:
        """What a round's uploads are folded into."""
        if self.veil is not None:
            return self.veil.reduction(self.server, devices, tuned, self._device)
        return updater.reduction(tuned, self.plan, devices, self._device)

    def _fold(self, reduction: Reduction, start: Start, trained: Trained, count: int, steps: int) -> None:
        """Give the reduction what the devices that count uploaded, and note what they keep."""
        upload, keep = updater.numpy_of(trained.upload), updater.numpy_of(trained.keep)
        for place in range(count):
            row: Trees = {slot: chunks.rows(tree, place) for slot, tree in upload.items()}
            if self.veil is not None:
                row = self.veil.contributed(row, self.server, start.devices[place], start.number)
            reduction.offer(
                start.devices[place],
                Upload(start.examples[place].count, steps, lambda row=row: row),  # type: ignore[misc]  # the default binds it now
            )
        kept = {slot: tree.map(lambda rows: rows[:count]) for slot, tree in keep.items()}
        if kept:
            self._keep.write(start.number, self._of(start.devices[:count]), kept)

    def _of(self, devices: Sequence[str]) -> Places:
        try:
            return np.array([self._places[device] for device in devices], np.int64)
        except KeyError as error:
            raise ConfigError(f"the fleet has no device {error.args[0]!r}", where="cohort") from None

    def _identity(self, model: Tree, data: str) -> Identity:
        digest, plan = hashlib.sha256(), self.plan
        for name, tensor in model.items():
            digest.update(name.encode() + tensor.numpy().tobytes())
        return Identity(
            algorithm=plan.algorithm,
            settings={**plan.fixed, **plan.server, **plan.hyper, **self.setting.hyper, **self._private_settings()},
            model=digest.hexdigest(),
            devices=len(self.names),
            fleet=hashlib.sha256("\n".join(self.names).encode()).hexdigest(),
            steps=self.setting.steps,
            seed=self.setting.seed,
            decay=dict(self.setting.decay),
            batch=plan.batch.size,
            data=data,
        )

    def _private_settings(self) -> dict[str, Any]:
        return {} if self.veil is None else {"privacy": msgspec.to_builtins(self.veil.privacy)}


def chunk_for(graphs: Graphs, device: str) -> int:
    """How many devices to compute at once.

    A device takes its slots three times (before and after a step, and gradients) and, as a guess, thirty times its
    minibatch for what lies between the layers.
    """
    plan, kind = graphs.plan, torch.device(device).type
    slots = sum(spec.nbytes for slot in plan.slots.values() for spec in slot.tensors.values())
    batch = plan.batch.size * sum(spec.nbytes for spec in plan.batch.x)
    room, most = ROOM.get(kind, ROOM["cuda"]), MOST.get(kind, MOST["cuda"])
    return max(1, min(most, room // (3 * slots + 30 * batch)))


def _check(devices: Mapping[str, Examples], setting: Setting, chunk: int, threads: int) -> None:
    if not devices:
        raise ConfigError("the fleet has no device", where="devices")
    if setting.codec:
        raise ConfigError(
            "nothing is sent here, so nothing is encoded", where=f"codec {setting.codec}", remedy="Leave it out"
        )
    if chunk < 0:
        raise ConfigError(f"{chunk} devices at once", where="chunk", remedy="Give 1 or more, or 0 for what suits")
    if threads < 1:
        raise ConfigError(f"{threads} threads compute nothing", where="threads", remedy="Give 1 or more")


def _checked(cohort: Sequence[str]) -> tuple[str, ...]:
    devices = tuple(sorted(cohort))
    if not devices or len(set(devices)) != len(devices):
        raise ConfigError("it has no device, or one twice", where="cohort")
    return devices
