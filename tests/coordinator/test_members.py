"""Who may take part, as the coordinator's settings and its word say."""

from __future__ import annotations

import pytest

from coordinator import members
from edgepfl.wire import Hello

HUBS = {"north": 2}


@pytest.mark.parametrize(
    ("device", "below", "why"),
    [
        ("ant", (), ""),
        ("ant", ("bee",), "none of the hubs"),
        ("north", ("bee", "cat"), ""),
        ("north", (), "no device is with it"),
        ("north", ("bee", "cat", "dog"), "speaks for 3 devices, and the coordinator's settings allow it 2"),
    ],
)
def test_whoever_takes_no_part_is_told_apart_with_the_reason(device: str, below: tuple[str, ...], why: str) -> None:
    hello = Hello(device, 1, ("onnx",), 5, 512, "test", members=below)
    assert why in members.silenced(hello, HUBS)
    assert members.speaks_for_itself(hello, HUBS) == (not why)
