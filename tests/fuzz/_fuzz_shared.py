"""Targets that read what hubs and aggregators hand to a coordinator: sums, jobs and outcomes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from _fuzz_agreement import safetensors_of
from _fuzz_inputs import bytes_of, either, json_of
from _fuzz_oracle import Bound, Check, Target, back
from _fuzz_samples import BUNDLE, SHA

from coordinator import pieces
from coordinator.aggregator.job import Given, Job, Outcome, Refused, Send, Sent, Update, Updated, read_job, read_outcome
from coordinator.config import RunConfig
from coordinator.exact import Exact, Grid
from coordinator.journal import Checkpoint
from coordinator.sums import Form
from edgepfl import algorithms
from edgepfl.errors import CodecError
from edgepfl.tree import Tree

_DEVICES = 3


def targets() -> tuple[Target, ...]:
    """All of them."""
    return (_sums(), _job(), _outcome())


def _sums() -> Target:
    form = Form(BUNDLE.plan, algorithms.build("fedavg", {}), Grid.of(1e3, 100))
    sums = form.empty()
    for _ in range(_DEVICES):
        for exact in sums.values():
            exact.add(Tree({name: torch.full(spec.shape, 0.5) for name, spec in BUNDLE.plan.model.items()}), 2.0)
    seed = form.encode(sums)
    check = back(lambda data: form.decode(data, _DEVICES, where="sums"), form.encode, CodecError, _same)
    return Target("sums", either(bytes_of([seed]), safetensors_of(seed)), check, Bound(base=256 << 10), 5)


def _same(one: dict[str, Exact], other: dict[str, Exact]) -> bool:
    return all(
        torch.equal(tensor, other[name].bins()[k][key])
        for name, exact in one.items()
        for k, tree in enumerate(exact.bins())
        for key, tensor in tree.items()
    )


def _job() -> Target:
    at = Checkpoint(4, SHA, (SHA,))
    given = Given("pi-07", 120, 10, SHA)
    works = (Update((given, given), ("pi-07", "pi-08"), last=False, grid=20), Send(("pi-07",)))
    jobs = [Job("run", 4, 0, SHA, RunConfig(), at, work) for work in works]
    return _records("job", jobs, back(read_job, pieces.encode, CodecError))


def _outcome() -> Target:
    outcomes: list[Outcome] = [
        Updated(SHA, Checkpoint(4, SHA, (SHA,)), SHA),
        Sent(SHA, {"pi-07": SHA}),
        Refused(SHA, "why"),
    ]
    return _records("outcome", outcomes, back(lambda data: read_outcome(data, SHA), pieces.encode, CodecError))


def _records(name: str, records: Sequence[Job | Outcome], check: Check) -> Target:
    seeds = [pieces.encode(each) for each in records]
    return Target(name, either(bytes_of(seeds), json_of([msgspec.json.decode(each) for each in seeds])), check, share=5)
