"""The options by which every command says what data a fleet has."""

from __future__ import annotations

import argparse

from simulators.datasets._base import FleetData
from simulators.datasets.registry import DATASETS, load

PARTITION = (
    "who has what: dirichlet:0.3, classes:2, iid, with +power:1.2, +noise:0.1, ... (see edgepfl data show --help)"
)
DRIFT = "how data change with the round: labels:abrupt,start=20 or features:gradual,start=5,length=10"


def add_data(parser: argparse.ArgumentParser, *, default: str = "watch", drift: bool = False) -> None:
    """``--data`` and ``--partition``; ``--drift`` where all agents are ours to give other data in each round."""
    parser.add_argument(
        "--data",
        default=default,
        metavar="NAME[,OPTION=VALUE...]",
        help=f"one of {', '.join(DATASETS)}, module:function or FILE.npz (default: {default})",
    )
    parser.add_argument("--partition", default="", metavar="PARTITION", help=PARTITION)
    if drift:
        parser.add_argument("--drift", default="", metavar="DRIFT", help=DRIFT)


def data_of(words: argparse.Namespace, *, devices: int, seed: int) -> FleetData:
    """What the options of :func:`add_data` say.

    Raises:
        ConfigError: an unknown name, option, partition or drift.
        DataError: the data cannot be fetched or used.
    """
    drift = getattr(words, "drift", "")
    return load(words.data, devices=devices, seed=seed, partition=words.partition, drift=drift)


def described(words: argparse.Namespace) -> str:
    """The same as text, for a record of what was trained on."""
    drift = getattr(words, "drift", "")
    return " ".join(part for part in (words.data, words.partition, drift and f"drift {drift}") if part)
