from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from device_agent.database import LOG_PAGES
from device_agent.place import Place
from device_agent.store import Settlement, Store

_KEEP, _REPORT = bytes(27_000), bytes(28_000)


def _train(store: Store, rounds: int) -> None:
    for number in range(rounds):
        store.settle("run", number - 1, number, 0)
        store.commit_pending("run", number, 0, keep=_KEEP, report=_REPORT)
        store.close_round("run", number, accepted=True)


@pytest.mark.parametrize(("pages", "most"), [(32, 400 << 10), (LOG_PAGES, 5 << 20)])
def test_the_log_grows_no_longer_than_it_was_told(tmp_path: Path, pages: int, most: int) -> None:
    with closing(Store(tmp_path / "store.db", pages)) as store:
        _train(store, 100)
        assert (tmp_path / "store.db-wal").stat().st_size < most
        assert store.keep("run") == (99, _KEEP)
    with closing(Store(tmp_path / "store.db")) as again:  # with another length of log
        assert again.keep("run") == (99, _KEEP)


def test_a_task_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.db")) as store:
        _train(store, 1)
        before = (tmp_path / "store.db-wal").read_bytes()
        assert store.settle("run", 0, 1, 0) == Settlement(0, None, behind=False)
        assert store.settle("run", 5, 6, 0) == Settlement(0, None, behind=True)
        assert store.outbox() == []
        assert (tmp_path / "store.db-wal").read_bytes() == before


def test_an_empty_place_has_nothing_to_forget(tmp_path: Path) -> None:
    place = Place.open(tmp_path)
    with closing(place.store):
        occupied = [place.offered.occupied]
        sha256 = place.offered.keep(b"an upload that no report names")
        occupied.append(place.offered.occupied)
        place.forget_offers()
        assert not place.offered.has(sha256)
        assert [*occupied, place.offered.occupied] == [False, True, False]
