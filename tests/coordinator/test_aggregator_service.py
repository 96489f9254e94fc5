"""Orders to ranks: repeated, lost, forged or impossible."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from _aggregating import aggregating, job_in, remotely, store
from _crews import in_ranks
from _plans import bundle_of
from _scripted import TOPICS, config, finished, honest_fleet, play, serving, until

from coordinator import pieces
from coordinator.aggregator.crew import Alone, Crew
from coordinator.aggregator.job import Job, Refused, Send, Sent, Update, Updated, read_outcome
from coordinator.aggregator.member import Member
from coordinator.storage.depot import Depot
from coordinator.storage.directory import DirectoryDepot
from edgepfl import codec, wire
from edgepfl.algorithms import Cohort
from edgepfl.algorithms.feddyn import FedDyn
from edgepfl.bundle import pack
from edgepfl.bus import Arrived
from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus
from edgepfl.errors import RunError
from edgepfl.plan import Role
from edgepfl.topics import FromAggregator, ToAggregator
from edgepfl.tree import Tree, Trees
from edgepfl.wire import Done, Here, Message, Order

RANKS = 2


@dataclass
class Desk:
    """Whoever speaks to ranks in the place of a coordinator."""

    bus: LoopbackBus

    def order(self, digest: str) -> None:
        self.raw(wire.encode(Order(digest)))

    def raw(self, payload: bytes) -> None:
        self.bus.publish(TOPICS.build(ToAggregator(Order.KIND)), payload)

    async def heard(self) -> Message:
        while True:
            event = await self.bus.receive()
            if isinstance(event, Arrived):
                return wire.decode(event.payload)


@asynccontextmanager
async def desk(broker: LoopbackBroker) -> AsyncIterator[Desk]:
    bus = LoopbackBus(broker, "desk")
    bus.subscribe(TOPICS.from_aggregator())
    await bus.start()
    yield Desk(bus)
    await bus.stop()


def test_an_order_that_comes_twice_is_done_once_and_answered_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, depot = LoopbackBroker(), DirectoryDepot(tmp_path / "store")
        digest = depot.keep(pieces.encode(job_in(depot, tmp_path)))
        async with desk(broker) as at, aggregating(broker, depot, RANKS):
            assert await at.heard() == Here(RANKS)
            for payload in (b"", b"\xc1", wire.encode(Here(1)), wire.encode(Done(digest, digest))):
                at.raw(payload)
            at.order("0" * 64)  # nobody knows such a job
            at.order(digest)
            at.order(digest)
            first = await at.heard()
            assert isinstance(first, Done)
            at.order(digest)
            assert await at.heard() == first
            outcome = read_outcome(depot.read(first.outcome), digest)
            assert isinstance(outcome, Updated)
            depot.delete(next(iter(outcome.checkpoint.parts)))  # somebody cleaned up, so it is done again
            at.order(digest)
            assert await at.heard() == first
            assert outcome.checkpoint.round == 1
            assert outcome.download is not None
            assert {digest, first.outcome, outcome.download, *outcome.checkpoint.blobs} <= depot.digests()

    play(scenario())


def outcomes(depot: Depot, *jobs: Job, fresh: bool = False) -> list[str]:
    """The outcomes' digests at rank 0, of ranks that keep their state or of new ones for each job."""

    def work(crew: Crew) -> list[str]:
        member, made = Member(crew, depot), []
        for job in jobs:
            data = pieces.encode(job)
            member = Member(crew, depot) if fresh else member
            made.append(member.do(depot.keep(data), data))
        return made

    first, *others = in_ranks(RANKS, work)
    assert all(set(other) == {""} for other in others)
    return first


def following(depot: Depot, job: Job, outcome: str) -> Job:
    """The next round's update."""
    done = read_outcome(depot.read(outcome), depot.keep(pieces.encode(job)))
    assert isinstance(done, Updated)
    return msgspec.structs.replace(job, number=job.number + 1, checkpoint=done.checkpoint)


@pytest.mark.parametrize("name", ["feddyn", "fpfc"])
def test_ranks_that_forgot_everything_make_the_same(name: str, tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    jobs = [job_in(depot, tmp_path, name)]
    for _ in range(2):
        jobs.append(following(depot, jobs[-1], outcomes(depot, *jobs)[-1]))
    kept = outcomes(depot, *jobs)
    assert len(set(kept)) == 3
    assert outcomes(depot, *jobs, fresh=True) == kept
    assert outcomes(depot, jobs[2], jobs[1], jobs[1], jobs[2]) == [kept[2], kept[1], kept[1], kept[2]]


def test_a_download_for_each(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path, "fpfc")
    send = msgspec.structs.replace(following(depot, job, outcomes(depot, job)[0]), work=Send(("ant", "zebra")))
    digest = depot.keep(pieces.encode(send))
    sent = read_outcome(depot.read(outcomes(depot, send)[0]), digest)
    assert isinstance(sent, Sent)
    assert sent.downloads.keys() == {"ant", "zebra"}
    declared = {name: slot.tensors for name, slot in bundle_of("fpfc").plan.by_role(Role.DOWN).items()}
    for sha256 in sent.downloads.values():
        assert codec.decode(depot.read(sha256), declared).keys() == declared.keys()


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path)
    assert isinstance(job.work, Update)
    part = depot.keep(codec.encode({"delta": Tree({"body.bias": np.zeros(2, np.float32)})}))
    weights = np.zeros((3, 2), np.float32)
    weights[-1, -1] = np.inf  # only the last rank's columns
    whole = Tree({"body.bias": np.zeros(2, np.float32), "head.weight": weights})
    wild = msgspec.structs.replace(job.work.uploads[0], upload=depot.keep(codec.encode({"delta": whole})))
    lost = msgspec.structs.replace(job.work.uploads[0], upload="1" * 64)
    foreign = msgspec.structs.replace(job.work.uploads[0], upload=part)
    cases = {
        "upload of ant": msgspec.structs.replace(job.work, uploads=(lost, job.work.uploads[1])),
        "is not finite": msgspec.structs.replace(job.work, uploads=(wild, job.work.uploads[1])),
        "is missing": msgspec.structs.replace(job.work, uploads=(foreign, job.work.uploads[1])),
    }
    for why, work in cases.items():
        bad = msgspec.structs.replace(job, work=work)
        refused, done = outcomes(depot, bad, job)  # and the next job is none the worse for it
        outcome = read_outcome(depot.read(refused), depot.keep(pieces.encode(bad)))
        assert isinstance(outcome, Refused)
        assert why in outcome.why
        assert done == outcomes(depot, job)[0]


def test_what_a_failed_update_did_to_the_state_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path)
    expected = outcomes(depot, job)[0]
    update, failed = FedDyn.update, set()

    def spoilt(self: FedDyn, state: Trees, got: Cohort) -> Trees:
        if got.number == 7:
            state["w"].map(lambda tensor: tensor.add_(1))
            failed.add(got.number)
            raise RunError("half-way")
        return update(self, state, got)

    monkeypatch.setattr(FedDyn, "update", spoilt)
    assert outcomes(depot, msgspec.structs.replace(job, number=7), job)[1] == expected
    assert failed


def test_where_the_store_fails_nothing_is_said(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path)
    data = bytes(depot.read(job.checkpoint.state))
    depot.delete(job.checkpoint.state)
    assert outcomes(depot, job) == [""]
    depot.keep(data)
    assert outcomes(depot, job) != [""]


def test_one_rank_needs_no_others(tmp_path: Path) -> None:
    depot = DirectoryDepot(tmp_path / "store")
    job = job_in(depot, tmp_path)
    digest = depot.keep(pieces.encode(job))
    whole = read_outcome(depot.read(Member(Crew(Alone()), depot).do(digest, pieces.encode(job))), digest)
    shards = read_outcome(depot.read(outcomes(depot, job)[0]), digest)
    assert isinstance(whole, Updated)
    assert isinstance(shards, Updated)
    assert whole.download == shards.download


def test_a_coordinator_waits_for_aggregators_and_believes_no_forged_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of("feddyn")
        broker, depot = LoopbackBroker(), store(tmp_path)
        eve = LoopbackBus(broker, "eve")
        eve.subscribe(TOPICS.for_aggregator())
        await eve.start()
        async with remotely(broker, tmp_path, depot) as service, serving(*honest_fleet(broker, bundle)):
            run = service.start_run(config(), pack(bundle))
            await until(service, run, lambda: "the aggregators have an order" in service.status(run).waiting)
            forged = [b"", b"\xc1", wire.encode(Order("0" * 64)), wire.encode(Done("0" * 64, "0" * 64))]
            while not isinstance(event := await eve.receive(), Arrived):
                pass
            order = wire.decode(event.payload)
            assert isinstance(order, Order)
            forged += [wire.encode(Done(order.job, sha256)) for sha256 in ("0" * 64, order.job)]
            for payload in forged:
                eve.publish(TOPICS.build(FromAggregator("done")), payload)
            async with aggregating(broker, depot, 1):
                assert (await finished(service, run)).status == "done"
        await eve.stop()

    play(scenario())


@pytest.mark.parametrize("name", ["feddyn", "fpfc"])
def test_a_run_that_waits_for_aggregators_can_be_stopped(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name)
        broker, depot = LoopbackBroker(), store(tmp_path)
        async with remotely(broker, tmp_path, depot) as service, serving(*honest_fleet(broker, bundle)):
            for _ in range(2):
                run = service.start_run(config(), pack(bundle))
                await until(service, run, lambda run=run: "have an order" in service.status(run).waiting)  # type: ignore[misc]  # the default binds it now
                service.stop_run(run)
                assert (await finished(service, run)).status == "stopped"
            run = service.start_run(config(), pack(bundle))
            async with aggregating(broker, depot, RANKS):
                assert (await finished(service, run)).status == "done"
            run = service.start_run(config(), pack(bundle))
            await until(service, run, lambda: "have an order" in service.status(run).waiting)  # and closes meanwhile
        assert not service._jobs

    play(scenario())


def test_an_algorithms_fault_ends_the_attempt_and_not_the_aggregators(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker, depot = LoopbackBroker(), store(tmp_path)
        wrong, right = bundle_of("fedamp", alpha=100.0), bundle_of("fedamp")
        async with (
            remotely(broker, tmp_path, depot) as service,
            aggregating(broker, depot, RANKS),
            serving(*honest_fleet(broker, right)),
        ):
            status = await finished(service, service.start_run(config(attempts=2), pack(wrong)))
            assert status.status == "failed"
            assert "the others' weights" in status.why
            assert (await finished(service, service.start_run(config(), pack(right)))).status == "done"

    play(scenario())
