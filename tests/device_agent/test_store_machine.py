"""The store among lost, repeated and late messages and power cuts.

The machine plays a coordinator that knows the truth: which of the device's states counted.  Messages go into a bag and
are delivered at any time, in any order, any number of times; the power may fail after any step.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from device_agent.store import Kept, Store

RUNS = ("north", "south")


@dataclass
class Truth:
    """What the coordinator of one run knows."""

    round: int = 0
    attempt: int = 0
    counted: dict[int, bytes] = field(default_factory=dict)  # round -> the KEEP slots of its accepted report
    received: bytes | None = None  # in the open round and attempt

    @property
    def accepted(self) -> int:
        return max(self.counted, default=-1)

    @property
    def task(self) -> tuple[str, int, int, int]:
        return "task", self.accepted, self.round, self.attempt

    def open(self, round_: int, attempt: int) -> None:
        self.round, self.attempt, self.received = round_, attempt, None


class Exchange(RuleBasedStateMachine):
    """One device in two runs."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.starts = 0
        self.path = self.root / "0" / "agent.db"
        self.store = Store(self.path)
        self.truth = {run: Truth() for run in RUNS}
        self.bag: dict[str, list[tuple[Any, ...]]] = {run: [truth.task] for run, truth in self.truth.items()}
        self.made = 0
        self.session = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    def _deliver(self, run: str, message: tuple[Any, ...]) -> None:
        match message:
            case "task", accepted, round_, attempt:
                self.store.settle(run, accepted, round_, attempt)
            case "commit", round_, counts:
                self.store.close_round(run, round_, accepted=counts)

    @rule(run=st.sampled_from(RUNS))
    def work(self, run: str) -> None:
        """The current task arrives; the device trains from exactly the state that counted last."""
        truth = self.truth[run]
        word = self.store.settle(run, truth.accepted, truth.round, truth.attempt)
        assert (word.settled, word.behind) == (truth.accepted, False)
        assert self.store.keep(run) == Kept(truth.accepted, truth.counted.get(truth.accepted))
        if word.pending is None:
            self.made += 1
            self.store.commit_pending(
                run, truth.round, truth.attempt, keep=b"%d" % self.made, report=b"report of %d" % self.made
            )
        else:
            assert word.pending == (truth.round, truth.attempt)

    @rule(run=st.sampled_from(RUNS))
    def send(self, run: str) -> None:
        """The outbox reaches the coordinator, which takes what belongs to the open round."""
        truth = self.truth[run]
        for out in self.store.outbox():
            if out.run == run and (out.round, out.attempt) == (truth.round, truth.attempt):
                made = out.report.removeprefix(b"report of ")
                assert truth.received in (None, made)
                truth.received = made

    @rule(run=st.sampled_from(RUNS), in_time=st.booleans())
    def commit(self, run: str, in_time: bool) -> None:  # noqa: FBT001  hypothesis draws it
        """The round ends; a report that came too late does not count."""
        truth = self.truth[run]
        counts = in_time and truth.received is not None
        if counts and truth.received is not None:
            truth.counted[truth.round] = truth.received
        self.bag[run].append(("commit", truth.round, counts))
        truth.open(truth.round + 1, 0)
        self.bag[run].append(truth.task)

    @rule(run=st.sampled_from(RUNS))
    def abandon(self, run: str) -> None:
        """The round is tried again; what was reported in it is forgotten."""
        truth = self.truth[run]
        truth.open(truth.round, truth.attempt + 1)
        self.bag[run].append(truth.task)

    @rule(run=st.sampled_from(RUNS), choice=st.integers(0, 1 << 16))
    def deliver(self, run: str, choice: int) -> None:
        """Any message that was ever sent arrives, perhaps again."""
        self._deliver(run, self.bag[run][choice % len(self.bag[run])])

    @rule()
    def cut(self) -> None:
        """The power fails: only what is in the files is left."""
        self.starts += 1
        after = self.root / str(self.starts) / self.path.name
        after.parent.mkdir()
        for suffix in ("", "-wal"):
            before = self.path.with_name(self.path.name + suffix)
            if before.exists():
                shutil.copyfile(before, after.with_name(after.name + suffix))
        self.store.close()
        self.store, self.path = Store(after), after

    @precondition(lambda self: self.starts < 9)
    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store(self.path)
        session = self.store.next_session()
        assert session > self.session
        self.session = session

    @invariant()
    def settled_states_counted(self) -> None:
        for run, truth in getattr(self, "truth", {}).items():
            kept = self.store.keep(run)
            assert kept.data == truth.counted.get(kept.round)
            assert kept.round <= truth.accepted

    @invariant()
    def a_report_that_may_count_is_never_lost(self) -> None:
        for run, truth in getattr(self, "truth", {}).items():
            waiting = {out.round: out.report for out in self.store.outbox() if out.run == run}
            assert len(waiting) <= 1
            if truth.received is not None:
                assert waiting == {truth.round: b"report of " + truth.received}
            if self.store.keep(run).round < truth.accepted:
                assert waiting == {truth.accepted: b"report of " + truth.counted[truth.accepted]}

    @invariant()
    def what_it_remembers_is_what_the_file_says(self) -> None:
        if not hasattr(self, "store"):
            return
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as file:
            settled = dict(file.execute("SELECT run, round FROM settled"))
            rows = file.execute("SELECT run, round, attempt, report, upload FROM pending ORDER BY run").fetchall()
        pending = {run: (round_, attempt) for run, round_, attempt, *_ in rows}
        for run, known in self.store._rounds.items():
            assert known == (settled.get(run, -1), pending.get(run))
        assert self.store.outbox() == rows


class Words(RuleBasedStateMachine):
    """Any words in any order, against the tables of the module written as a plain dictionary."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.store = Store(self.root / "agent.db")
        self.settled: tuple[int, bytes | None] = (-1, None)
        self.pending: dict[tuple[int, int], bytes] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    @rule(ahead=st.integers(1, 3), attempt=st.integers(0, 2), keep=st.binary(max_size=4))
    def commit_pending(self, ahead: int, attempt: int, keep: bytes) -> None:
        round_ = self.settled[0] + ahead
        if all((round_, attempt) >= key for key in self.pending):
            self.store.commit_pending("r", round_, attempt, keep=keep, report=keep)
            self.pending = {(round_, attempt): keep}

    @rule(accepted=st.integers(-2, 4), opened=st.integers(0, 5), a=st.integers(0, 2))
    def settle(self, accepted: int, opened: int, a: int) -> None:
        q, r = self.settled[0] + accepted, self.settled[0] + opened
        word = self.store.settle("r", q, r, a)
        if q >= self.settled[0]:
            for (p, b), keep in list(self.pending.items()):
                if p == q:
                    self.settled = (p, keep)
                if p <= q or (p, b) < (r, a):
                    del self.pending[p, b]
        assert word == (self.settled[0], next(iter(self.pending), None), self.settled[0] < q)

    @rule(ahead=st.integers(-1, 4), counts=st.booleans())
    def close_round(self, ahead: int, counts: bool) -> None:  # noqa: FBT001  hypothesis draws it
        r = self.settled[0] + ahead
        self.store.close_round("r", r, accepted=counts)
        for (p, b), keep in list(self.pending.items()):
            if p == r:
                del self.pending[p, b]
                self.settled = (p, keep) if counts else self.settled

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store(self.root / "agent.db")

    @invariant()
    def same(self) -> None:
        if hasattr(self, "store"):
            assert tuple(self.store.keep("r")) == self.settled
            assert {(out.round, out.attempt): out.report for out in self.store.outbox()} == self.pending


_SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestExchange = Exchange.TestCase
TestExchange.settings = _SETTINGS
TestWords = Words.TestCase
TestWords.settings = _SETTINGS
