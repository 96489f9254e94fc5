"""``edgepfl soak``: a large emulated fleet trains for a while among faults; what leaks, and what is lost?

The coordinator and the broker are processes of their own, the fleet is this one.  Devices lose their connections, the
coordinator does, and the broker is killed and comes back empty, at times that follow from the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from coordinator.status import RunStatus
from edgepfl.bus.heap import give_back_large_blocks
from edgepfl.errors import ConfigError, RunError
from simulators.broker import open_broker
from simulators.soak_measures import LEAK, Latency, Sample, SoakResult, growth, latency
from simulators.soak_page import picture
from simulators.soak_probe import ProbeProcess
from simulators.soak_stage import FLEET, SoakStage
from simulators.soak_trouble import Rates, Trouble, mishaps

STALLED = 10  # times its length, after which a soak without a round has failed
SETTLE = 90.0  # seconds at the end, in which every device has to learn what became of its last report


class Soak:
    """One soak.

    Args:
        stage: entered.
        rates: of the faults.
        seconds: that it lasts.
        every: seconds between two samples.
        seed: of everything random.

    Attributes:
        memory: what each process took.
    """

    def __init__(self, stage: SoakStage, rates: Rates, *, seconds: float, every: float, seed: int) -> None:
        self._stage, self._rates = stage, rates
        self._seconds, self._every, self._seed = seconds, every, seed
        self._trouble = Trouble(stage.fleet, stage.proxy, stage.broker)
        self._probe = ProbeProcess(stage.broker.url, FLEET)
        self.memory: dict[str, list[Sample]] = defaultdict(list)

    async def run(self) -> SoakResult:
        """All of it.

        Raises:
            RunError: the run failed, or a process ended by itself.
        """
        await self._stage.start(self._seed)
        began = time.monotonic()
        coming = mishaps(self._rates, self._stage.devices, self._seed)
        tasks = [asyncio.create_task(self._trouble.make(coming)), asyncio.create_task(self._probe.listen())]
        try:
            while not self._enough(time.monotonic() - began):
                await asyncio.wait(tasks, timeout=self._every, return_when=asyncio.FIRST_EXCEPTION)
                for task in tasks:
                    if task.done():
                        task.result()
                self._look(await self._stage.status())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        status = await self._stage.status()
        behind = await self._stage.stop(SETTLE)
        return self._result(status, behind, (time.monotonic() - began) / 60)

    def _enough(self, seconds: float) -> bool:
        """Whether the time is over and there is something to tell of; a stall ends it too, but later."""
        told = bool(self._probe.told["control"])
        return seconds >= self._seconds and (told or seconds >= STALLED * self._seconds)

    def _look(self, status: RunStatus) -> None:
        if status.status != "running":
            raise RunError(f"it ended as {status.status}: {status.why}", where=f"run {status.run}")
        if status.round and not self._probe.run.done():
            self._probe.run.set_result(status.run)
        now = self._stage.measure()
        for name, sample in now.items():
            self.memory[name].append(sample)
        sizes = "  ".join(f"{name} {sample.rss:.0f} MB" for name, sample in now.items())
        at = max((sample.at for sample in now.values()), default=0.0)
        control = latency(self._probe.told["control"])
        counts = self._trouble.counts
        print(
            f"{at / 60:5.1f} min  round {status.round}  {len(status.here)} here  {sizes}  "
            f"control p50 {control.p50_ms:g} ms, p99 {control.p99_ms:g} ms  "
            f"{counts['device']} cuts, {counts['coordinator']} of the coordinator, {counts['broker']} broker kills",
            file=sys.stderr,
            end="\r" if sys.stderr.isatty() else "\n",
            flush=True,
        )

    def _result(self, status: RunStatus, behind: int, minutes: float) -> SoakResult:
        counted, stage = self._stage.counted(), self._stage
        return SoakResult(
            seed=self._seed,
            broker=stage.broker.name,
            devices=len(stage.devices),
            minutes=round(minutes, 2),
            rounds=len(counted),
            reports=sum(counted.values()),
            expected=len(counted) * len(stage.devices),
            abandoned=stage.abandoned(),
            behind=behind,
            cuts=self._trouble.counts["device"],
            coordinator_cuts=self._trouble.counts["coordinator"],
            kills=self._trouble.counts["broker"],
            unanswered=len(self._probe.told["unanswered"]),
            echo=latency(self._probe.told["echo"]),
            control=latency(self._probe.told["control"]),
            memory={name: growth(samples) for name, samples in self.memory.items()},
            bytes_in=status.bytes_in,
            bytes_out=status.bytes_out,
            refused=status.refused,
        )


def main(arguments: list[str]) -> int:
    """Soak; the exit status is 0 where nothing leaks and nothing is lost, else 1."""
    words = _parser().parse_args(arguments)
    _check(words)
    give_back_large_blocks()  # as real agents do
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with tempfile.TemporaryDirectory(prefix="edgepfl-soak-") as scratch:
        folder = Path(words.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result, memory = asyncio.run(_soak(words, folder))
    if words.svg is not None:
        title = f"{result.devices} devices for {result.minutes:.0f} minutes on {result.broker}: resident set size"
        words.svg.write_text(picture(memory, title), encoding="utf-8")
    print(as_json(result) if words.json else told(result))
    return 1 if result.failures else 0


async def _soak(words: argparse.Namespace, folder: Path) -> tuple[SoakResult, dict[str, list[Sample]]]:
    rates = Rates(words.cuts, words.coordinator_cuts, words.kills)
    with open_broker(kind=words.broker) as broker:
        async with SoakStage(broker, folder, devices=words.devices, seed=words.seed) as stage:
            soak = Soak(stage, rates, seconds=60 * words.minutes, every=words.every, seed=words.seed)
            return await soak.run(), soak.memory


def as_json(result: SoakResult) -> str:
    """For a program: with what it failed by."""
    fields = msgspec.to_builtins(result)
    return msgspec.json.encode({**fields, "failures": result.failures}).decode()


def told(result: SoakResult) -> str:
    """For people."""
    lost = f"{result.abandoned} attempts abandoned; {result.behind} devices behind"
    lines = [
        f"{result.devices} devices, {result.minutes:.1f} minutes on {result.broker}, seed {result.seed}",
        f"{result.rounds} rounds: {result.reports} of {result.expected} reports count; {lost}",
        f"{result.cuts} devices cut off, {result.coordinator_cuts} times the coordinator; {result.kills} broker kills",
        f"coordinator: {result.bytes_in / 1e6:.1f} MB in, {result.bytes_out / 1e6:.1f} MB out",
        _way("over the broker and back", result.echo),
        _way("report and its answer", result.control) + f"; {result.unanswered} lost with a connection",
    ]
    for name, each in result.memory.items():
        lines.append(
            f"{name}: at most {each.rss_peak:.1f} MB, {each.rss_slope:+.3f} MB a minute (PSS {each.pss_slope:+.3f}); "
            f"passes below {LEAK:g}"
        )
    return "\n".join(
        [*lines, *(f"FAILED: {each}" for each in result.failures), *([] if result.failures else ["passed"])]
    )


def _way(name: str, found: Latency) -> str:
    return f"{name}: p50 {found.p50_ms:g} ms, p99 {found.p99_ms:g} ms ({found.count} times)"


def _check(words: argparse.Namespace) -> None:
    if not 1 <= words.devices <= 2000:  # noqa: PLR2004  what one task can name
        raise ConfigError(f"{words.devices} devices", where="--devices", remedy="Give 1 to 2000")
    for name in ("minutes", "every"):
        if not getattr(words, name) > 0:
            raise ConfigError("it must be above 0", where=f"--{name}")
    for name in ("cuts", "coordinator_cuts", "kills"):
        if not getattr(words, name) >= 0:
            raise ConfigError("it must not be below 0", where=f"--{name.replace('_', '-')}")


def _parser() -> argparse.ArgumentParser:
    usual = Rates()
    parser = argparse.ArgumentParser(
        prog="edgepfl soak",
        description="Train a large emulated fleet for a while among faults, and tell what leaks and what is lost. "
        "Starts a broker and a coordinator as processes; the fleet is this process. Passes (exit status 0) where no "
        f"process grows by {LEAK:g} MB a minute or more and every device's report of every round counts.",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="that it lasts (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=1000, help="to emulate, at most 2000 (default: %(default)s)")
    parser.add_argument("--broker", choices=("auto", "mosquitto", "iotcore"), default="auto", help="kind (auto)")
    parser.add_argument("--seed", type=int, default=0, help="of the faults, the data and the run (default: 0)")
    parser.add_argument(
        "--cuts", type=float, default=usual.cuts, help="of some device's connection, a minute (default: %(default)s)"
    )
    parser.add_argument(
        "--coordinator-cuts",
        type=float,
        default=usual.coordinator,
        metavar="MINUTES",
        help="between cuts of the coordinator's connection; 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--kills",
        type=float,
        default=usual.kills,
        metavar="MINUTES",
        help="between kills of the broker, which comes back empty; 0 for none (default: %(default)s)",
    )
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="between samples (default: 10)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture of the memory over time")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep settings, logs and state there")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
