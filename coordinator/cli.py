"""``edgepfl coordinator`` and ``edgepfl run``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coordinator import asking
from coordinator.clusters import describe
from coordinator.config import MOST_SELECTED, CoordinatorConfig, RunConfig, load
from coordinator.journal import Status
from coordinator.privacy import options as privacy_options
from coordinator.staleness import weighting_of
from coordinator.status import RunStatus
from coordinator.watching import Watch, text_of
from edgepfl import presets
from edgepfl.algorithms import parse_settings
from edgepfl.bus.conditions import add_options, conditions_of
from edgepfl.bus.heap import give_back_large_blocks
from edgepfl.bus.lifetime import settings_file, until_signal
from edgepfl.bus.mqtt import MqttBus
from edgepfl.bus.settings import mqtt_settings
from edgepfl.coding import codec_of
from edgepfl.errors import ConfigError, RunError
from edgepfl.validation import convert, on_command_line

_RUN_NUMBERS = {
    "rounds": "training rounds",
    "steps": "minibatch steps a round and device",
    "goal": "reports that a round takes; without --over the devices to select for it, too",
    "over": "select this many times GOAL devices and end the round with the first GOAL reports; 1.3 is usual for "
    "fleets where some drop out. Which reports count then depends on which come first, so a run cannot be repeated bit "
    "by bit",
    "minimum": "reports below which a round is abandoned",
    "gather": "seconds to wait for GOAL devices once MINIMUM are here",
    "deadline": "seconds a round may take",
    "canary": "part of the first round's cohort that gets the bundle first, while the others wait until it has shown "
    "that the bundle loads and steps; 0 for all at once",
    "halt-failures": "end the run when more than this part of those who have the task (and at least two) cannot load "
    "or run its bundle; 1 for never",
    "quarantine-after": "failures in a row after which a device is left out for some rounds",
    "quarantine-rounds": "how many rounds that are, twice as many each further time, 0 for none; a device is not left "
    "out where MINIMUM could not be reached without it",
    "attempts": "attempts at a round, after which the run fails",
    "lease": "seconds without a sign of life until a device is asked again",
    "seed": "of everything random",
    "evaluate-every": "rounds between evaluations on the devices",
    "tune-steps": "steps of fine-tuning before an evaluation",
    "patience": "seconds after which a slow device's part counts as it is, 0 for never",
    "buffer": "reports that make an update while GOAL devices are at work all the time, so that nobody waits for a "
    "slow one; 0 for rounds that wait for everyone (docs/asynchronous.md)",
    "max-staleness": "with --buffer, updates after which a report is not taken any more",
    "max-examples": "a report that claims more is refused",
    "max-norm": "greatest Euclidean norm of an uploaded slot",
}


def coordinator(arguments: list[str]) -> int:
    """Run the coordinator until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="edgepfl coordinator",
        description="Run the coordinator of one fleet. It needs an MQTT 5 broker, and goes on where it was stopped.",
        epilog='coordinator.toml: fleet = "NAME", optionally state = "DIRECTORY" and device = "cuda", and a table '
        '[broker] with url = "mqtt://HOST:1883", optionally username, password_file, ca, cert and key; store = "URL" '
        "and a table [aggregator] let edgepfl aggregator do the mathematics; hubs = { NAME = MOST_DEVICES } names "
        "devices that are hubs; a table [transfer] may have chunk_kib, quota_mib, reserve_mib and under_way_mib, see "
        "docs/transfer.md",
    )
    config = load(settings_file(parser, arguments))
    give_back_large_blocks()
    return asyncio.run(_serve(config))


def run(arguments: list[str]) -> int:
    """Start, watch or stop a run."""
    words = _run_parser().parse_args(arguments)
    state = Path(load(words.config).state)
    match words.do:
        case "start":
            request = asking.Request("start", bundle=str(words.bundle.resolve()), config=_run_config(words))
            return asyncio.run(_start(state, request, watch=not words.detach, as_json=words.json))
        case "watch":
            return asyncio.run(_watch(state, words.run, as_json=words.json))
        case _:
            return asyncio.run(_once(state, asking.Request(words.do, run=words.run), as_json=words.json))


async def _serve(config: CoordinatorConfig) -> int:
    from coordinator import control  # noqa: PLC0415  it needs torch, and `edgepfl run` shall not wait for that
    from coordinator.service import Coordinator  # noqa: PLC0415  likewise

    client_id = f"{config.fleet}_coordinator"  # no device can be called so
    bus = MqttBus(mqtt_settings(config.broker, client_id, busy=True))
    service = Coordinator(
        config.fleet,
        bus,
        Path(config.state),
        device=config.device,
        hubs=config.hubs,
        transfer=config.transfer,
        **_shared(config),
    )
    async with control.serve(service, Path(config.state)):
        logging.getLogger(__name__).info("fleet %s on %s, state in %s", config.fleet, config.broker.url, config.state)
        await until_signal(service.run())
    return 0


def _shared(config: CoordinatorConfig) -> dict[str, Any]:
    """The shared store, where the settings name one: aggregators work in it, or it has a copy of every blob."""
    from coordinator.orders import Aggregation  # noqa: PLC0415  likewise
    from coordinator.storage.location import open_depot  # noqa: PLC0415  likewise

    if not config.store:
        return {}
    depot = open_depot(config.store, fleet=config.fleet)
    return (
        {"shared": depot} if config.aggregator is None else {"aggregation": Aggregation(depot, config.aggregator.again)}
    )


async def _start(state: Path, request: asking.Request, *, watch: bool, as_json: bool) -> int:
    async for answer in asking.ask(state, request):
        started = str(answer.ok)
        if watch:
            print(f"started {started}", file=sys.stderr)
            return await _watch(state, started, as_json=as_json)
        print(json.dumps({"run": started}) if as_json else started)
    return 0


async def _watch(state: Path, name: str, *, as_json: bool) -> int:
    watch, status = Watch(sys.stdout, as_json=as_json), ""
    async for answer in asking.ask(state, asking.Request("watch", run=name)):
        if isinstance(answer.ok, RunStatus):
            watch.see(answer.ok)
            status = answer.ok.status
    if status in {"", Status.RUNNING}:
        raise RunError("the coordinator hung up", where=name, remedy="Start it again: it goes on with the run")
    return 0 if status == Status.DONE else 1


async def _once(state: Path, request: asking.Request, *, as_json: bool) -> int:
    async for answer in asking.ask(state, request):
        if answer.clusters is not None:
            print(msgspec.json.encode(answer.clusters).decode() if as_json else describe(answer.clusters))
        if isinstance(answer.ok, RunStatus):
            print(msgspec.json.encode(answer.ok).decode() if as_json else text_of(answer.ok))
    return 0


def _run_config(words: argparse.Namespace) -> RunConfig:
    options = (*_RUN_NUMBERS, "robust", "server-optimizer", "codec", "staleness", "secagg-clip", "secagg-neighbours")
    given = {name.replace("-", "_"): getattr(words, name.replace("-", "_")) for name in options}
    published = _published(words)
    fields = {**published, **{name: value for name, value in given.items() if value is not None}}
    fields["hyper"] = {**published.get("hyper", {}), **parse_settings(words.set)}
    fields["decay"] = {**published.get("decay", {}), **_factors(words.decay)}
    fields["name"], fields["exact"], fields["secagg"] = words.name, words.exact, words.secagg
    fields["conditions"] = conditions_of(words)
    fields["privacy"] = privacy = privacy_options.privacy_of(words, "edgepfl run start")
    if privacy is not None and given["goal"] is None:
        rounds, most = fields.get("rounds", RunConfig().rounds), MOST_SELECTED
        fields["goal"] = privacy_options.goal_of(privacy, rounds, most) or RunConfig().goal
    if not words.secagg:
        _refuse_any(given, ("secagg_clip", "secagg_neighbours"), "secure aggregation", "Give --secagg, too")
    if not fields.get("buffer"):
        _refuse_any(given, ("staleness", "max_staleness"), "buffered runs", "Give --buffer K, too, or leave it out")
    weighting_of(fields.get("staleness", "constant"))
    codec_of(fields.get("codec", ""))  # a clear error here, before the coordinator is asked
    place = on_command_line("edgepfl run start", {"hyper": "--set"})
    return convert(fields, RunConfig, place, remedy="See edgepfl run start --help")


def _factors(settings: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in parse_settings(settings).items():
        try:
            found[name] = float(text)
        except ValueError as error:
            remedy = f"Give a factor, such as {name}=0.998"
            raise ConfigError(f"{name} = {text!r} is no number", where="--decay", remedy=remedy) from error
    return found


def _refuse_any(given: Mapping[str, object], options: Sequence[str], alone: str, remedy: str) -> None:
    """Refuse options that mean nothing without another one.

    Raises:
        ConfigError: one of them is given.
    """
    for option in options:
        if given.get(option) is not None:
            raise ConfigError(f"it is for {alone} alone", where=f"--{option.replace('_', '-')}", remedy=remedy)


def _published(words: argparse.Namespace) -> dict[str, Any]:
    """What the preset says of a run, by the names of its settings."""
    if words.preset is None:
        return {}
    preset = presets.load(words.preset)
    if words.steps is None and preset.epochs is not None and preset.local_steps is None:
        raise ConfigError(
            f"{words.preset} has {preset.epochs} epochs a round, and how many steps these are depends on the examples",
            where="--preset",
            remedy=f"Give --steps: {preset.epochs} times a device's examples over the rows of a minibatch",
        )
    return {**preset.run, "hyper": preset.settings, "decay": preset.decay}


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl run", description="Start, watch or stop a run of the coordinator on this machine."
    )
    actions = parser.add_subparsers(dest="do", required=True)
    start = actions.add_parser(
        "start",
        help="begin a run and watch it to its end",
        description="Begin a run of the coordinator on this machine, and watch it to its end. What is not given is as "
        "the bundle or the preset says, else the default.",
    )
    _add_start_options(start)
    for do, text in {
        "status": "say where a run stands",
        "watch": "follow a run to its end",
        "stop": "end a run",
        "clusters": "tell which devices a run of fpfc has fused",
    }.items():
        action = actions.add_parser(do, help=text)
        action.add_argument("run", nargs="?", default="", help="its id (default: the newest)")
    for action in actions.choices.values():
        action.add_argument("--config", type=Path, required=True, metavar="FILE", help="the coordinator's settings")
        action.add_argument("--json", action="store_true", help="print JSON, a line for each status")
    return parser


def _add_start_options(start: argparse.ArgumentParser) -> None:
    start.add_argument("--bundle", type=Path, required=True, metavar="FILE", help="made by edgepfl export")
    start.add_argument("--name", default="run", help="for people (default: run)")
    start.add_argument(
        "--exact", action="store_true", help="sum uploads exactly: the same bits as through hubs, but slower"
    )
    start.add_argument(
        "--secagg",
        action="store_true",
        help="secure aggregation: devices mask their uploads, and the coordinator sees their sum alone; needs "
        "--minimum 3 or more, and goes without --robust, --codec, --buffer and --exact (docs/secagg.md)",
    )
    start.add_argument(
        "--secagg-clip",
        type=float,
        metavar="MAGNITUDE",
        help="with --secagg, the greatest number that an upload may hold; the smaller, and the smaller --max-examples, "
        f"the finer are sums, or the shorter uploads (default: {RunConfig().secagg_clip:g})",
    )
    start.add_argument(
        "--secagg-neighbours",
        type=int,
        metavar="COUNT",
        help="with --secagg, with how many others each device exchanges masks; 0 for as many as let a round end with "
        "30 %% dropouts (default: 0)",
    )
    start.add_argument("--detach", action="store_true", help="do not watch it")
    start.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter, other than the bundle's"
    )
    start.add_argument(
        "--preset",
        metavar="NAME",
        help="published rounds, steps, goal, decay and hyperparameters, such as pfedme/mnist-mclr; what is given "
        "beside it wins (edgepfl algorithms --presets lists them)",
    )
    start.add_argument(
        "--decay",
        action="append",
        default=[],
        metavar="NAME=FACTOR",
        help="multiply a runtime hyperparameter with each round, such as lr=0.998",
    )
    start.add_argument(
        "--robust",
        metavar="RULE",
        help="keep means from a few wild devices: median, trimmed_mean:FRACTION (left out of the greatest and "
        "the least), krum:WILD (how many may be wild), multi_krum:WILD:CHOSEN, geometric_median or clip:NORM; most "
        "need --minimum 3 or more",
    )
    start.add_argument(
        "--server-optimizer",
        metavar="NAME",
        help="what the server adds in place of the mean change: sgd, momentum, fedadagrad, fedyogi or fedadam, perhaps "
        "with hyperparameters, such as fedadam:lr=0.1,tau=0.001",
    )
    start.add_argument(
        "--staleness",
        metavar="WEIGHTING",
        help="with --buffer, what a report weighs that comes S updates late: constant, polynomial:A for (1 + S)^-A, or "
        "hinge:A,B for 1 up to S = B and 1 / (A (S - B) + 1) from there (default: polynomial:0.5)",
    )
    start.add_argument(
        "--codec",
        metavar="WORDS",
        help="how devices encode their uploads, parts joined with +: int8, int4, float16 or bfloat16 round; topk:0.05 "
        "sends the greatest 5 %% of all changes and threshold:1e-3 those of at least 0.001, and both the rest later; "
        "sparse leaves zeros out; zlib packs; such as int8+zlib (default: raw float32). edgepfl estimate tells what "
        "each saves",
    )
    add_options(start)
    privacy_options.add_options(start)
    defaults = RunConfig()
    for name, text in _RUN_NUMBERS.items():
        default = getattr(defaults, name.replace("-", "_"))
        start.add_argument(f"--{name}", type=type(default), help=f"{text} (default: {default:g})")
