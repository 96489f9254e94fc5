"""Power cuts of a coordinator with aggregators, and of the aggregators, at every write of either: the same bits."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from _aggregating import aggregating, remotely, store
from _plans import bundle_of
from _scripted import config, finished, honest_fleet, play, serving

from coordinator.journal import Journal
from coordinator.rounds import Phase
from coordinator.storage.directory import DirectoryDepot
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker

RANKS = 2
WRITES = ((Journal, ("create", "open_round", "append", "commit", "end")), (DirectoryDepot, ("keep", "keep_only")))


@contextmanager
def _cuts(state: Path, to: Path) -> Iterator[list[tuple[str, Path]]]:
    """Keep a copy of everything before and after every write of the journal and of the store."""
    cuts: list[tuple[str, Path]] = []
    one = threading.RLock()  # or a copy would have one half of now and one of later

    def around(kind: type, name: str, patch: pytest.MonkeyPatch) -> None:
        write: Callable[..., Any] = getattr(kind, name)

        def cut(when: str) -> None:
            cuts.append((f"{when} {name} {len(cuts)}", to / f"cut {len(cuts)}"))
            with suppress(shutil.Error):  # a temporary file
                shutil.copytree(state, cuts[-1][1], ignore=shutil.ignore_patterns("*-shm", "*.tmp"))

        def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  it stands for any method
            with one:
                cut("before")
                result = write(self, *arguments, **named)
                cut("after")
            return result

        patch.setattr(kind, name, wrapped)

    with pytest.MonkeyPatch.context() as patch:
        for kind, names in WRITES:
            for name in names:
                around(kind, name, patch)
        yield cuts


async def _run(bundle: Bundle, state: Path) -> tuple[str, str, list[tuple[int, str]]]:
    """A run to its end: a new one, or the one that another coordinator left."""
    broker, depot = LoopbackBroker(), store(state)
    async with (
        remotely(broker, state, depot) as service,
        aggregating(broker, depot, RANKS),
        serving(*honest_fleet(broker, bundle)),
    ):
        begun = service.journal.run()
        run = begun.id if begun is not None else service.start_run(config(), pack(bundle))
        status = await finished(service, run)
        return status.status, status.state_sha256, [(r.round, r.device) for r in service.journal.results(run)]


@pytest.mark.parametrize(
    ("name", "every"),
    [pytest.param("feddyn", 9, id="one download"), pytest.param("fpfc", 17, id="one for each device")],
)
def test_a_power_cut_anywhere(name: str, every: int, tmp_path: Path) -> None:
    async def scenario() -> None:
        bundle = bundle_of(name)
        with _cuts(tmp_path / "state", tmp_path) as cuts:
            expected = await _run(bundle, tmp_path / "state")
        assert expected[0] == "done"
        phases, begun = set(), 0
        for place, (cut, state) in enumerate(cuts):
            if not (state / "journal.db").exists():
                continue
            journal = Journal(state / "journal.db")
            row = journal.run()
            found = journal.open_state(row.id) if row is not None else None
            journal.close()
            phases.add(found.phase if found is not None else None)
            if row is None or place % every:
                continue  # before the run was accepted, or one of many
            begun += 1
            assert (cut, *await _run(bundle, state)) == (cut, *expected)
        assert phases == {None, Phase.SELECTING, Phase.REPORTING, Phase.REDUCING}
        assert begun > 6, (begun, len(cuts))

    play(scenario())
