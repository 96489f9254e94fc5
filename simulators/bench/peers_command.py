"""``edgepfl bench peers``: the same job here and in other systems' simulators."""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from simulators.bench import arguments

if TYPE_CHECKING:
    from simulators.bench.peer_programs.common import Job

_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of its own is made there

_DESCRIPTION = (
    "FedAvg on a perceptron of 60-128-10, every device in every round, 5 steps on all of its 32 examples: the same "
    "data, initial model and arithmetic for real agents over MQTT, for edgepfl simulate, and for Flower, BlazeFL and "
    "pfl-research, one after the other. Each peer has an environment of its own under ~/.cache/edgepfl/peers, made at "
    "first use from its pinned release (network needed); one that cannot be had is said so, and the others run. The "
    "final models are compared: they must be the same. State lies in "
    "memory (/dev/shm) where there is such a place. Exit status 1 where one is not, or one failed."
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to its parser."""
    peers = commands.add_parser(
        "peers",
        help="the same job in Flower, BlazeFL and pfl-research",
        description=_DESCRIPTION,
        epilog="example: edgepfl bench peers --devices 100 --only vmapped,agents,flower --json peers.json",
    )
    peers.add_argument("--only", default="", metavar="NAMES", help="of vmapped, agents, flower, blazefl, pfl")
    peers.add_argument("--devices", default="100", metavar="N", help="in the fleet (default: %(default)s)")
    peers.add_argument("--steps", default="5", metavar="N", help="minibatch steps of a round (default: %(default)s)")
    peers.add_argument("--batch", default="32", metavar="N", help="examples of a device (default: %(default)s)")
    peers.add_argument("--rounds", default="10", metavar="N", help="that count; one more warms up (default: 10)")
    peers.add_argument(
        "--workers", default="2", metavar="N", help="processes or threads at once (default: %(default)s)"
    )
    peers.add_argument("--seed", type=int, default=0, help="of data and initial model (default: %(default)s)")
    peers.add_argument("--json", type=Path, metavar="FILE", help="write the rows for a program")
    peers.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    peers.set_defaults(run=_run)


def _job(words: argparse.Namespace) -> Job:
    from simulators.bench.peer_programs.common import Job  # noqa: PLC0415  torch, which other benchmarks may not need

    most = {"devices": 10_000, "steps": 1000, "batch": 4096, "rounds": 1000, "workers": 256}
    given = {name: arguments.number(f"--{name}", getattr(words, name), limit) for name, limit in most.items()}
    return Job(**{**given, "rounds": given["rounds"] + 1, "seed": words.seed})


def _run(words: argparse.Namespace) -> int:
    from simulators.bench import peers, peers_ours, peers_text  # noqa: PLC0415  likewise

    job = _job(words)
    names = arguments.chosen("--only", words.only, peers.CONTESTANTS) if words.only else list(peers.CONTESTANTS)
    first = {name: tensor.numpy() for name, tensor in peers_ours.model_of(job).parameters.items()}
    memory = str(_MEMORY) if _MEMORY.is_dir() else None  # the peers' simulators keep nothing on a disk either
    with tempfile.TemporaryDirectory(prefix="edgepfl-peers-", dir=memory) as folder:
        peers.prepare(job, Path(folder), first)
        rows = peers.run(names, Path(folder), arguments.tell)
    print(peers_text.text(job, rows))
    if words.json is not None:
        found = {
            "job": asdict(job),
            "machine": peers_text.machine(),
            "rows": [peers_text.as_json(job, r) for r in rows],
        }
        words.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if words.markdown is not None:
        words.markdown.write_text(peers_text.markdown(job, rows) + "\n", encoding="utf-8")
    return 0 if all(row.right for row in rows) else 1
