"""``edgepfl simulate``: research runs of thousands of devices, computed as whole cohorts on one machine."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch

from coordinator.privacy import options as privacy_options
from coordinator.privacy.account import assumptions
from edgepfl import algorithms
from edgepfl.errors import ConfigError
from exporters.fitting import fitted
from simulators.arguments import settings_for
from simulators.bench.arguments import number
from simulators.datasets.arguments import add_data, data_of, described
from simulators.emulation.work import model_named
from simulators.experiment import HEAD
from simulators.federation import Setting
from simulators.report.summary import Summary
from simulators.vmapped.folder import Row
from simulators.vmapped.private import configured
from simulators.vmapped.progress import Progress
from simulators.vmapped.vectorised import Vectorised

_DESCRIPTION = (
    "Train a fleet without agents, broker or network: whole cohorts are computed at once by torch.func.vmap, from the "
    "same algorithms and models, with the numbers that real agents would give. For research with 10,000 devices and "
    "more; how real agents fare on bad networks is what edgepfl emulate shows. With --state the run goes on where it "
    "was, whenever it is started again with the same options."
)
_EXAMPLES = """examples:
  edgepfl simulate --algorithm fedavg --devices 100 --rounds 20
  edgepfl simulate --algorithm ditto --data synthetic,alpha=1,beta=1,most=500 --devices 10000 --cohort 200
  edgepfl simulate --algorithm ditto --devices 100000 --cohort 1000 --state runs/ditto --evaluate 2000 --json out.json
"""
_DEVICES, _ROUNDS = 10_000_000, 10_000_000


def main(arguments: list[str]) -> int:
    """Run a simulation."""
    words = _parser().parse_args(arguments)
    limits = {"devices": _DEVICES, "rounds": _ROUNDS, "steps": 100_000, "batch": 1 << 16}
    counts = {name: number(f"--{name}", getattr(words, name), most) for name, most in limits.items()}
    cohort = number("--cohort", words.cohort, counts["devices"]) if words.cohort else counts["devices"]
    _check_device(words.device)
    _check_words(words)
    began = time.perf_counter()
    run = _opened(words, counts, cohort)
    try:
        if run.number > counts["rounds"]:
            raise ConfigError(f"it has {run.number} rounds already", where="--rounds", remedy="Ask for more")
        rows, opening = list(run.folder.rows()) if run.folder is not None else [], time.perf_counter() - began
        rows += _trained(run, words, min(cohort, len(run.names)), counts["rounds"])
        found = _evaluated(run, words, counts["rounds"])
    finally:
        run.close()
    result = _result(words, run, rows, found, opening)
    print(_text(result))
    if words.json is not None:
        words.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def _opened(words: argparse.Namespace, counts: dict[str, int], cohort: int) -> Vectorised:
    settings = settings_for(words.algorithm, algorithms.parse_settings(words.set))
    data = data_of(words, devices=counts["devices"], seed=words.seed)
    algorithm = algorithms.build(words.algorithm, settings)
    model = fitted(algorithm, model_named(words.model, data, counts["batch"], words.seed), own=HEAD, seed=words.seed)
    setting = Setting(steps=counts["steps"], tune_steps=words.tune_steps, seed=words.seed)
    chunk = number("--chunk", words.chunk, _DEVICES) if words.chunk else 0
    privacy = privacy_options.privacy_of(words, "edgepfl simulate")
    threads = number("--threads", words.threads) if words.threads else os.cpu_count() or 1
    return Vectorised(
        algorithm,
        model,
        data.devices,
        setting,
        chunk=chunk,
        device=words.device,
        threads=threads if words.device == "cpu" else 1,
        folder=words.state,
        data=described(words),
        private=None if privacy is None else configured(privacy, counts["devices"], cohort, counts["rounds"]),
    )


def _trained(run: Vectorised, words: argparse.Namespace, cohort: int, rounds: int) -> list[Row]:
    rows = []
    with Progress(f"{words.algorithm}, {len(run.names)} devices", rounds, run.number) as progress:
        while run.number < rounds and not (run.veil is not None and run.veil.exhausted(run.number)):
            rows.append(run.round(run.cohort(cohort), last=run.number + 1 == rounds).row)
            progress.see(rows[-1])
    return rows


def _evaluated(run: Vectorised, words: argparse.Namespace, rounds: int) -> dict[str, Summary]:
    """Metrics by model, over those devices that a round after the last would choose."""
    asked = min(number("--evaluate", words.evaluate, _DEVICES), len(run.names)) if words.evaluate else len(run.names)
    print(f"round {rounds}: evaluating {asked} devices ...", file=sys.stderr, flush=True)
    found = run.evaluate(run.choose(asked))
    return {metric: found.summary(metric) for metric in found.metrics}


def _result(
    words: argparse.Namespace, run: Vectorised, rows: list[Row], found: dict[str, Summary], opening: float
) -> dict[str, object]:
    settled = rows[1:] or rows  # the first writes the graphs
    seconds = sum(row.seconds for row in settled)
    trained = sum(row.devices for row in settled)
    return {
        "algorithm": words.algorithm,
        "data": described(words),
        "model": run.plan.title,
        "devices": len(run.names),
        "rounds": run.number,
        "steps": run.setting.steps,
        "seed": words.seed,
        "chunk": run.chunk,
        "device": words.device,
        "privacy": _private(run),
        "seconds_to_open": opening,
        "seconds_per_round": seconds / len(settled) if settled else None,
        "device_rounds_per_second": trained / seconds if seconds else None,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "evaluation": {
            metric: {"mean": s.mean, "worst_decile": s.worst_decile, "best": s.best} for metric, s in found.items()
        },
        "history": [{"round": row.number, "seconds": row.seconds, **row.metrics} for row in rows],
        "versions": {name: version(name) for name in ("edgepfl", "torch")},
    }


def _private(run: Vectorised) -> dict[str, object] | None:
    """What a private run came to; None for one that is not private."""
    if run.veil is None:
        return None
    spent = {"epsilon": run.veil.epsilon(run.number), "delta": run.veil.privacy.delta}
    return {**spent, "assumptions": assumptions(run.veil.config, run.veil.privacy)}


def _text(result: dict[str, object]) -> str:
    """For people."""
    title = (
        f"{result['algorithm']} on {result['data']}, {result['model']}: {result['devices']} devices, "
        f"{result['rounds']} rounds of {result['steps']} steps, seed {result['seed']}"
    )
    lines = [title]
    if isinstance(speed := result["device_rounds_per_second"], float):
        lines.append(
            f"{result['seconds_per_round']:.2f} s a round, {speed:.0f} device-rounds a second, "
            f"at most {result['peak_rss_mib']:.0f} MiB"
        )
    if isinstance(privacy := result["privacy"], dict):
        lines.append(f"epsilon {privacy['epsilon']:.4g} at delta {privacy['delta']:g}")
        lines.extend(f"  {each}" for each in privacy["assumptions"])
    evaluation = result["evaluation"]
    for metric, values in evaluation.items() if isinstance(evaluation, dict) else ():
        if not metric.startswith("loss"):
            lines.append(
                f"{metric}: mean {values['mean']:.4f}, worst decile {values['worst_decile']:.4f}, "
                f"best {values['best']:.4f}"
            )
    return "\n".join(lines)


def _check_words(words: argparse.Namespace) -> None:
    """Refuse what would only be found when all is done.

    Raises:
        ConfigError: there is no directory for the results, or a number is none.
    """
    if words.tune_steps < 0:
        raise ConfigError(f"{words.tune_steps} is no number of steps", where="--tune-steps", remedy="Give 0 or more")
    if words.json is not None and not words.json.absolute().parent.is_dir():
        where = f"--json {words.json}"
        raise ConfigError("its directory does not exist", where=where, remedy="Make it, or name another file")


def _check_device(device: str) -> None:
    """Refuse what torch would refuse in the middle.

    Raises:
        ConfigError: there is no such device, or not here.
    """
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"it cannot be used ({reason})", where=f"--device {device}", remedy="Leave it out") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl simulate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(algorithms.names())
    parser.add_argument("--algorithm", default="fedavg", metavar="NAME", help=f"one of {names} (default: fedavg)")
    add_data(parser, default="random")
    parser.add_argument(
        "--model", default="mlp-9k", metavar="NAME", help="mlp-9k, mlp, cnn1d, of the zoo or MODULE:FACTORY (mlp-9k)"
    )
    parser.add_argument("--devices", default="1000", metavar="N", help="in the fleet (default: %(default)s)")
    parser.add_argument("--cohort", default="", metavar="N", help="devices of a round (default: all)")
    parser.add_argument("--rounds", default="10", metavar="N", help="that train (default: %(default)s)")
    parser.add_argument("--steps", default="5", metavar="N", help="minibatch steps of a round (default: %(default)s)")
    parser.add_argument("--batch", default="32", metavar="N", help="rows of a minibatch (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter (lam=0.1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same numbers (default: 0)")
    parser.add_argument("--tune-steps", type=int, default=3, metavar="N", help="before an evaluation (default: 3)")
    parser.add_argument("--evaluate", default="", metavar="N", help="so many devices in the end (default: all)")
    privacy_options.add_options(parser)
    parser.add_argument("--chunk", default="", metavar="N", help="devices in a chunk (default: what suits)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--threads", default="", metavar="N", help="chunks to compute at once (default: all cores)")
    parser.add_argument("--state", type=Path, metavar="DIRECTORY", help="keep the run there, and go on from it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results for a program")
    return parser
