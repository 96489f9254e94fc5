"""Every input that once did harm, or might, does none: what is made of it, in how much memory and how many calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from _fuzz_campaign import Fault, tried
from _fuzz_targets import target_of

CORPUS = Path(__file__).with_name("corpus")
INPUTS = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("name", INPUTS)
def test_it_comes_to_what_its_name_says(name: str) -> None:
    target = target_of(name.partition("/")[0])
    assert target is not None
    found = tried(target, (CORPUS / name).read_bytes(), whole=True)
    assert not isinstance(found, Fault), found.what
    assert found.accepted is Path(name).name.startswith("taken.")


def test_the_corpus_is_small() -> None:
    assert len(INPUTS) > 40
    assert sum((CORPUS / name).stat().st_size for name in INPUTS) < 200_000
