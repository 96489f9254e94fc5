"""Promise 6: repetitions, reordering and replays from earlier starts and rounds never change state.

Hypothesis plays against both session machines at once: it says which message arrives next, twice, never or again, when
time passes, and when the power of either side fails, between any two effects.  What must hold is looked at after every
step.  In full (``EDGEPFL_SOAK=1``) 500 examples of 50 steps.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from _p06 import Both, Letter, Watcher
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

MEMORY = Path("/dev/shm")  # noqa: S108  no disk is asked to sync here: power cuts are those of tests/crash
SOAK = bool(os.environ.get("EDGEPFL_SOAK"))
PLACES = st.integers(0, 1 << 16)
NAMES = st.sampled_from([f"pi-{number}" for number in range(4)])
EFFECTS = st.integers(0, 4)
MOST_RUNS = 3


class Machines(RuleBasedStateMachine):
    """Coordinator and devices over a bus of which nothing is certain."""

    @initialize(rounds=st.integers(2, 4))
    def begin(self, rounds: int) -> None:
        """Everything is new, and a run begins."""
        self.folder = tempfile.TemporaryDirectory(prefix="edgepfl-machines-", dir=MEMORY if MEMORY.is_dir() else None)
        self.both = Both(Path(self.folder.name))
        self.watcher = Watcher(self.both)
        self.both.begin(rounds)

    def teardown(self) -> None:
        """At last nothing goes wrong any more, and the run ends or waits with a reason."""
        if not hasattr(self, "both"):
            return
        try:
            self.tell()
            self.both.calm(60.0)
            self.watcher.look()
            self.watcher.after_calm()
        finally:
            self.both.close()
            self.folder.cleanup()

    def tell(self) -> None:
        """For ``--hypothesis-show-statistics``: how far it came."""
        journal = self.both.server.journal
        event(f"rounds committed: {sum(journal.checkpoint(run).round for run in self.both.runs)}")
        event(f"runs begun: {len(self.both.runs)}")
        event(f"attempts at the last round: {self.both.server.round.attempt + 1}")

    @property
    def has_letters(self) -> bool:
        return hasattr(self, "both") and bool(self.both.letters)

    @precondition(lambda self: self.has_letters)
    @rule()
    def deliver_all(self) -> None:
        """What is on its way arrives, in order."""
        for _ in range(len(self.both.letters)):
            if self.both.letters:
                self.arrives(0)

    @precondition(lambda self: self.has_letters)
    @rule(place=PLACES)
    def arrives(self, place: int) -> None:
        """One message arrives, before others that were sent earlier."""
        letter = self.both.take(place)
        self.both.old.append(letter)
        self.both.deliver(letter)

    @precondition(lambda self: self.has_letters)
    @rule(place=PLACES)
    def arrives_twice(self, place: int) -> None:
        """One message arrives, and will again."""
        letter = self.both.letters[place % len(self.both.letters)]
        self.both.deliver(letter)

    @precondition(lambda self: self.has_letters)
    @rule(place=PLACES)
    def is_lost(self, place: int) -> None:
        """One message is lost, and with it the device's connection, as at QoS 1."""
        self.both.devices[self.both.take(place).device].disconnect()

    @precondition(lambda self: hasattr(self, "both") and bool(self.both.old))
    @rule(place=PLACES)
    def old_one_arrives_again(self, place: int) -> None:
        """One of long ago, perhaps of an earlier start, round or run; what is decided stays as it is."""
        letter = self.both.old[place % len(self.both.old)]
        before = self.decided(letter)
        self.both.deliver(letter)
        assert self.decided(letter) == before

    def decided(self, letter: Letter) -> object:
        """What an old message must not change."""
        journal, device = self.both.server.journal, self.both.devices[letter.device]
        committed = [(journal.checkpoint(run), journal.results(run), journal.accepted(run)) for run in self.both.runs]
        return committed, [device.kept(run) for run in self.both.runs], device.store.standings()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5, 5.0, 9.0, 41.0]))
    def time_passes(self, seconds: float) -> None:
        """Work goes on, and leases and deadlines end."""
        self.both.pass_time(seconds)

    @rule(without=st.frozensets(NAMES, max_size=2), turns=st.integers(1, 12))
    def goes_on(self, without: frozenset[str], turns: int) -> None:
        """For some seconds nothing goes wrong, but for devices that only seem to be dead."""
        self.both.go_on(without, turns)

    @rule(without=st.frozensets(NAMES, min_size=1, max_size=2))
    def goes_on_for_long(self, without: frozenset[str]) -> None:
        """Until they have been given up."""
        self.both.go_on(without, 20)

    @rule(seconds=st.sampled_from([3.0, 8.0, 16.0]))
    def calm(self, seconds: float) -> None:
        """For some seconds nothing goes wrong."""
        self.both.calm(seconds)

    @rule(name=NAMES)
    def device_restarts(self, name: str) -> None:
        """A device's power fails."""
        self.both.devices[name].start()

    @rule(name=NAMES, effects=EFFECTS)
    def device_will_fail(self, name: str, effects: int) -> None:
        """Its power will fail in the middle of something."""
        self.both.devices[name].fuse.left = effects

    @rule(name=NAMES)
    def device_disconnects(self, name: str) -> None:
        """Its radio drops."""
        self.both.devices[name].disconnect()

    @rule(name=NAMES)
    def work_fails(self, name: str) -> None:
        """A device cannot do its task."""
        self.both.devices[name].fail()

    @rule()
    def coordinator_restarts(self) -> None:
        """Its power fails."""
        self.both.restart()

    @rule(effects=EFFECTS)
    def coordinator_will_fail(self, effects: int) -> None:
        """Its power will fail after an event is journalled, before some of its effects."""
        self.both.server.fuse.left = effects

    @rule()
    def broker_dies(self) -> None:
        """With everything that was on its way."""
        self.both.lose_broker()

    @precondition(lambda self: hasattr(self, "both") and len(self.both.runs) < MOST_RUNS)
    @rule(rounds=st.integers(1, 3))
    def another_run(self, rounds: int) -> None:
        """Begins if none is going on."""
        self.both.begin(rounds)

    @rule()
    def run_is_stopped(self) -> None:
        """A person ends it."""
        self.both.stop()

    @invariant()
    def everything_holds(self) -> None:
        """See :class:`Watcher`."""
        if hasattr(self, "both"):
            self.watcher.look()


Machines.TestCase.settings = settings(
    max_examples=500 if SOAK else 120,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.promise(6)
@pytest.mark.timeout(1800 if SOAK else 300)
class TestMachines(Machines.TestCase):  # type: ignore[misc, valid-type]  # hypothesis makes it
    pass
