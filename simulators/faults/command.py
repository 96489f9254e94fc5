"""``edgepfl faults``: the fault proxy before any broker, so that a fleet can meet a bad network on purpose."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import re
import signal
import sys
from dataclasses import asdict

from edgepfl.errors import ConfigError
from simulators.faults.proxy import FaultProxy
from simulators.faults.settings import NEVER, Faults, Span, Way

_SPAN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:-(\d+(?:\.\d*)?|\.\d+))?")
_EPILOG = """A span of seconds is LEAST-GREATEST, each draw uniform in between, or one number.

A network as on a train:
  edgepfl faults --listen 1884 --broker mqtt://broker:1883 --cut 20-90 --delay 0.05-0.4 --rate 50000 --seed 7
A client that must not trust order, and gets everything twice:
  edgepfl faults --listen 1884 --broker mqtt://broker:1883 --reorder 0.3 --duplicate 1
"""


def main(arguments: list[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    words = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.DEBUG if words.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if not 0 <= words.listen < 1 << 16:
        raise ConfigError(f"{words.listen} is no port", where="--listen", remedy="Give 1 to 65535, or 0 for any")
    proxy = FaultProxy(words.broker, faults_of(words), words.seed, port=words.listen, host=words.host)
    asyncio.run(_serve(proxy, words.host, words.listen))
    if words.json:
        print(json.dumps({"seed": proxy.seed, **asdict(proxy.tally)}))
    return 0


def faults_of(words: argparse.Namespace) -> Faults:
    """The faults that the command line names.

    Raises:
        ConfigError: a value is no span, rate or probability.
    """
    way = Way(
        delay=span(words.delay, "--delay", (0.0, 0.0)),
        rate=words.rate,
        drop=words.drop,
        duplicate=words.duplicate,
        reorder=words.reorder,
        held=span(words.held, "--held", Way().held),
        corrupt=words.corrupt,
        garble=words.garble,
        swallow=words.swallow,
    )
    return Faults(
        up=way if words.way in {"up", "both"} else Way(),
        down=way if words.way in {"down", "both"} else Way(),
        cut=span(words.cut, "--cut", NEVER),
        silence=span(words.silence, "--silence", NEVER),
    )


def span(text: str | None, where: str, absent: Span) -> Span:
    """``"0.3-1.2"`` or ``"0.3"`` as seconds; ``absent`` where nothing is given.

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return absent
    found = _SPAN.fullmatch(text)
    low = float(found[1]) if found else math.nan
    high = low if found is None or found[2] is None else float(found[2])
    if not low <= high:
        raise ConfigError(f"{text!r} is no span of seconds", where=where, remedy="Give two numbers, such as 0.3-1.2")
    return low, high


async def _serve(proxy: FaultProxy, host: str, port: int) -> None:
    try:
        async with proxy:
            print(f"clients connect to {proxy.url}", file=sys.stderr, flush=True)
            await _signal()
    except OSError as error:
        raise ConfigError(
            f"it cannot listen there ({error.strerror or error})",
            where=f"{host}, --listen {port}",
            remedy="Choose another port",
        ) from error


async def _signal() -> None:
    """Until SIGINT or SIGTERM."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl faults",
        description="Stand between MQTT clients and a broker, and do to their packets what a bad network does. What "
        "happens to the n-th packet of a client's n-th connection follows from the seed. Without TLS, which would "
        "hide the packets.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--broker", required=True, metavar="URL", help="the real broker, mqtt://HOST[:PORT]")
    parser.add_argument("--listen", type=int, required=True, metavar="PORT", help="where clients connect; 0 for any")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument(
        "--way", choices=("up", "down", "both"), default="both", help="up: to the broker (default: both)"
    )
    parser.add_argument("--cut", metavar="SPAN", help="seconds after which a connection is cut, each anew")
    parser.add_argument("--silence", metavar="SPAN", help="seconds after which one falls silent, and is not closed")
    parser.add_argument("--delay", metavar="SPAN", help="seconds that every packet takes longer, in order")
    parser.add_argument("--rate", type=float, default=0.0, metavar="BYTES", help="a second and connection, each way")
    for name, text in {
        "drop": "that a message of QoS 0 is lost",
        "duplicate": "that a message comes twice",
        "reorder": "that a message is held back while others go on",
        "corrupt": "that one bit of a message's payload is flipped",
        "garble": "that one bit of any packet is flipped, be it the header",
    }.items():
        parser.add_argument(f"--{name}", type=float, default=0.0, metavar="P", help=f"probability {text}")
    parser.add_argument("--held", metavar="SPAN", help="seconds that --reorder holds back (default: 0.02-0.2)")
    parser.add_argument("--swallow", action="store_true", help="let everything vanish, and keep connections open")
    parser.add_argument("--json", action="store_true", help="print what was done at the end, for a program")
    parser.add_argument("--verbose", action="store_true", help="log more")
    return parser
