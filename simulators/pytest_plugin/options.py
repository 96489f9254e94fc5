"""The plugin's command-line options and markers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KINDS = ("auto", "mosquitto", "iotcore")
SCHEMES = ("mqtt://", "mqtts://")
PATIENCE = 600.0  # seconds

MARKERS = (
    "fleet(agents=20, algorithm='fedavg', data='random', rounds=3, seed=0, ...): what the fixture `fleet` emulates",
    "faults(kind, devices=..., at=..., after=..., during=..., until=..., ...): what goes wrong in it; several add up",
    "scenario(name_or_file): the scenario that the fixture `fleet` carries out",
    "board(profile='host', data=..., name='board'): what the fixture `board` is",
)


@dataclass(frozen=True)
class Options:
    """The plugin's options.

    Attributes:
        broker: "auto", "mosquitto", "iotcore" or a URL.
        artifacts: where report files go; None: into a temporary folder of pytest's.
        seed: in place of every fleet's own; None: each has its own.
        patience: seconds that a fixture waits for anything.
    """

    broker: str = "auto"
    artifacts: Path | None = None
    seed: int | None = None
    patience: float = PATIENCE

    @property
    def url(self) -> str | None:
        """The broker's, if one is given."""
        return self.broker if "://" in self.broker else None

    @classmethod
    def of(cls, config: pytest.Config) -> Options:
        """The options of this session."""
        return config.stash[_OPTIONS]


_OPTIONS = pytest.StashKey[Options]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("edgepfl", "emulated fleets (edgepfl)")
    group.addoption(
        "--edgepfl-broker",
        default="auto",
        metavar="KIND|URL",
        help="the MQTT broker of the fixtures: a private mosquitto or iotcore, the first that is installed (auto), "
        "or the URL of a running one, mqtt://HOST:PORT (default: auto)",
    )
    group.addoption(
        "--edgepfl-artifacts",
        default="",
        metavar="DIR",
        help="write each fleet's report (JSON and HTML) and the coordinator's log into a folder of DIR",
    )
    group.addoption(
        "--edgepfl-seed",
        default="",
        metavar="N|random",
        help="the seed of every fleet, in place of its marker's: a failing test prints it; random draws a new one",
    )
    group.addoption(
        "--edgepfl-patience",
        default=str(PATIENCE),
        metavar="SECONDS",
        help=f"how long a fixture waits for a run before the test fails (default: {PATIENCE:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and read the options."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    artifacts = config.getoption("--edgepfl-artifacts")
    config.stash[_OPTIONS] = Options(
        _broker(config.getoption("--edgepfl-broker")),
        config.invocation_params.dir / artifacts if artifacts else None,
        _seed(config),
        patience_of(config.getoption("--edgepfl-patience")),
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401  a type of pytest-xdist's, which may not be installed
    """Give a worker of pytest-xdist the seed that was drawn here."""
    node.workerinput["edgepfl_seed"] = Options.of(node.config).seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is not as it always is."""
    options = Options.of(config)
    parts = [
        f"broker {options.broker}" if options.broker != "auto" else "",
        f"reports in {options.artifacts}" if options.artifacts else "",
        f"seed {options.seed}" if options.seed is not None else "",
    ]
    told = ", ".join(filter(None, parts))
    return f"edgepfl: {told}" if told else None


def _broker(text: str) -> str:
    if text in KINDS or text.startswith(SCHEMES):
        return text
    raise pytest.UsageError(
        f"--edgepfl-broker {text}: there is no such broker. Give {', '.join(KINDS)} or mqtt://HOST:PORT"
    )


def _seed(config: pytest.Config) -> int | None:
    text = config.getoption("--edgepfl-seed")
    if text != "random":
        return seed_of(text) if text else None
    # A worker of pytest-xdist takes the seed that its controller drew.
    given = getattr(config, "workerinput", {}).get("edgepfl_seed")
    return random.SystemRandom().getrandbits(31) if given is None else int(given)


def seed_of(text: str) -> int:
    """The seed that a text names.

    Raises:
        UsageError: it names none.
    """
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise pytest.UsageError(f"--edgepfl-seed {text}: give a whole number from 0 to 2**63 - 1, or random")
    return int(text)


def patience_of(text: str) -> float:
    """The seconds that a text names.

    Raises:
        UsageError: it names none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"--edgepfl-patience {text}: give seconds above 0")
    return seconds
