"""``edgepfl run start --buffer``: what it may say, and what ``edgepfl run status`` then says."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.cli import _run_config, _run_parser
from coordinator.config import RunConfig
from coordinator.journal import Result
from coordinator.lateness import BufferStatus, Lateness, buffer_status, lateness
from coordinator.seats import Phase, Policy, Round, Seat, State
from coordinator.status import RunStatus
from coordinator.watching import line_of
from edgepfl.errors import ConfigError


def config(*words: str) -> RunConfig:
    return _run_config(_run_parser().parse_args(["start", "--config=c", "--bundle=b", *words]))


def test_the_options() -> None:
    plain = config("--goal=4")
    assert (plain.buffer, plain.staleness, plain.max_staleness) == (0, "polynomial:0.5", 100)
    found = config("--goal=4", "--buffer=2", "--staleness=hinge:10,4", "--max-staleness=10")
    assert (found.buffer, found.staleness, found.max_staleness) == (2, "hinge:10,4", 10)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--goal=2", "--buffer=3"), r"buffer \(3\) is above goal \(2\)"),
        (("--goal=4", "--buffer=2", "--minimum=3"), r"minimum \(3\) is above buffer \(2\)"),
        (("--goal=4", "--buffer=2", "--over=1.5"), "no device is waited for"),
        (("--buffer=-1",), "buffer"),
        (("--buffer=1", "--staleness=soon"), "there is no 'soon'"),
    ],
)
def test_bad_ones(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(*words)


def test_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run_parser().parse_args(["start", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "docs/asynchronous.md" in words
    assert "polynomial:A for (1 + S)^-A" in words


def result(number: int, staleness: int, steps: int = 3) -> Result:
    return Result(number, f"pi-{staleness}", 5, steps, {}, {}, "", staleness)


def test_the_lateness_is_that_of_the_last_update_that_trained() -> None:
    results = (result(1, 9), result(2, 0), result(2, 1), result(2, 5), result(3, 0, steps=0))
    assert lateness(results) == Lateness(0, 2.0, 5)
    assert lateness((), Lateness(1, 1.0, 1)) == Lateness(1, 1.0, 1)
    assert lateness(()) is None


def test_the_buffer_at_one_moment() -> None:
    seats = {name: Seat(state, 0) for name, state in zip("abc", (State.REPORTED, *[State.WORKING] * 2), strict=True)}
    open_round = Round(8, 0, Policy(3, 1, buffer=2), Phase.REPORTING, seats=seats)
    found = buffer_status(2, 7, Lateness(0, 0.5, 1), open_round)
    assert found == BufferStatus(7, 1, 2, 2, Lateness(0, 0.5, 1))
    assert buffer_status(0, 7, None, open_round) is None
    status = RunStatus("run", "running", "", 7, 9, "reporting", "waits", (), {}, "", buffer=found)
    assert line_of(status).endswith("round 7/9  staleness 0 to 1, mean 0.5  waits")
    assert msgspec.json.decode(msgspec.json.encode(status), type=RunStatus) == status
