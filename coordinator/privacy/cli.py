"""``edgepfl privacy``: how much noise a run needs, and what a run has spent."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from pathlib import Path

import msgspec

from coordinator import asking
from coordinator.config import load
from coordinator.privacy import accountant
from coordinator.privacy.account import Account, finite, text
from coordinator.privacy.config import Accountant, Privacy
from coordinator.privacy.events import Event
from coordinator.status import RunStatus
from edgepfl.errors import ConfigError, RunError

_EXAMPLES = """examples:
  edgepfl privacy plan --devices 1000 --fraction 0.05 --rounds 200 --epsilon 4
  edgepfl privacy plan --devices 1000 --fraction 0.05 --rounds 200 --noise 1.1
  edgepfl privacy show --config coordinator.toml
"""


class Plan(msgspec.Struct, frozen=True):
    """What a private run comes to.

    Attributes:
        devices: of the fleet.
        fraction: that a round has of them.
        rounds: that train.
        noise: standard deviation of the noise over the clip.
        epsilon: that it spends; None for infinite.
        delta: with which.
        accountant: that counted.
        cohort: devices of a round on average.
        error: standard deviation of each number of the mean change, over the clip.
    """

    devices: int
    fraction: float
    rounds: int
    noise: float
    epsilon: float | None
    delta: float
    accountant: str
    cohort: float
    error: float


def main(arguments: list[str]) -> int:
    """Plan a private run, or tell what one has spent."""
    words = _parser().parse_args(arguments)
    if words.do == "plan":
        found = plan(words)
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n" if words.json else _planned(found))
        return 0
    return asyncio.run(_show(Path(load(words.config).state), words.run, as_json=words.json))


def plan(words: argparse.Namespace) -> Plan:
    """The noise for an epsilon, or the epsilon of a noise.

    Raises:
        ConfigError: a number is out of range, or both or neither of the two are given.
    """
    for name, low, high in (("devices", 1, 1 << 31), ("rounds", 1, 1 << 31)):
        _within(f"--{name}", getattr(words, name), low, high)
    _within("--fraction", words.fraction, 1e-9, 1)
    _within("--delta", words.delta, 1e-300, 0.5)
    if (words.noise is None) == (words.epsilon is None):
        raise ConfigError("one of the two is wanted", where="--epsilon, --noise", remedy="Give either")
    by = Accountant(words.accountant)
    delta = Privacy(delta=words.delta, fraction=words.fraction).counted_delta
    if words.noise is not None:
        _within("--noise", words.noise, 1e-3, 1e6)
        noise = words.noise
    else:
        _within("--epsilon", words.epsilon, 1e-3, 1e6)
        noise = accountant.noise_for(Event(1.0, words.fraction), words.rounds, words.epsilon, delta, by)
    spent = accountant.epsilon({Event(noise, words.fraction): words.rounds}, delta, by)
    cohort = words.devices * words.fraction
    return Plan(
        words.devices, words.fraction, words.rounds, noise, finite(spent), words.delta, by.value, cohort, noise / cohort
    )


def recount(account: Account) -> dict[str, float | None]:
    """Epsilon of a run's ledger by each accountant that knows its events, computed anew."""
    found: dict[str, float | None] = {}
    for by in Accountant:
        try:
            spent = accountant.epsilon({each.event: each.times for each in account.events}, account.counted_delta, by)
        except ConfigError as error:
            if error.where == "privacy":
                raise
            continue
        found[by.value] = finite(spent)
    return found


async def _show(state: Path, run: str, *, as_json: bool) -> int:
    async for answer in asking.ask(state, asking.Request("status", run=run)):
        if isinstance(answer.ok, RunStatus):
            _tell(answer.ok, as_json=as_json)
    return 0


def _tell(status: RunStatus, *, as_json: bool) -> None:
    account = status.privacy
    if account is None:
        raise RunError(
            "it is not private", where=status.run, remedy="Start one with: edgepfl run start --privacy central"
        )
    counts = recount(account)
    if as_json:
        shown = {"run": status.run, "account": account, "recounted": counts}
        sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
        return
    again = ", ".join(f"{name} {'infinite' if value is None else f'{value:.4g}'}" for name, value in counts.items())
    lines = [f"{status.run}: {account.releases} releases, at most {account.most} with one device", text(account)]
    sys.stdout.write("\n".join([*lines, f"counted anew at delta {account.counted_delta:g}: {again}"]) + "\n")


def _planned(found: Plan) -> str:
    spent = "infinite" if found.epsilon is None else f"{found.epsilon:.4g}"
    return (
        f"noise {found.noise:.4g} times the clip: epsilon {spent} at delta {found.delta:g} after {found.rounds} rounds "
        f"({found.accountant}), each with {found.fraction:g} of {found.devices} devices\n"
        f"about {found.cohort:.4g} devices a round; each number of the mean change is off by {found.error:.3g} times "
        "the clip\n"
        f"edgepfl run start --privacy central --noise {math.ceil(found.noise * 1e4) / 1e4:g} "
        f"--fraction {found.fraction:g} --population {found.devices} "
        f"--delta {found.delta:g} --rounds {found.rounds} ...\n"
    )


def _within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{value:g} is outside {low:g} to {high:g}", where=option, remedy="See edgepfl privacy --help"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl privacy",
        description="Plan a differentially private run, or tell what one has spent. It needs dp-accounting: "
        "pip install 'edgepfl[privacy]'.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="do", required=True)
    asked = actions.add_parser("plan", help="the noise that an epsilon needs, or the epsilon that a noise gives")
    asked.add_argument("--devices", type=int, required=True, metavar="N", help="of the fleet")
    asked.add_argument(
        "--fraction",
        type=float,
        required=True,
        help="with which each device is in a round (Poisson sampling); 1 for all",
    )
    asked.add_argument("--rounds", type=int, required=True, metavar="N", help="that train")
    asked.add_argument("--epsilon", type=float, help="that the run may spend")
    asked.add_argument("--noise", type=float, help="standard deviation of the noise over the clip")
    asked.add_argument("--delta", type=float, default=1e-5, help="(default: %(default)g)")
    asked.add_argument(
        "--accountant", choices=[each.value for each in Accountant], default="rdp", help="(default: rdp)"
    )
    shown = actions.add_parser("show", help="what a run has spent, counted anew from its ledger")
    shown.add_argument("run", nargs="?", default="", help="its id (default: the newest)")
    shown.add_argument("--config", type=Path, required=True, metavar="FILE", help="the coordinator's settings")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print JSON")
    return parser
