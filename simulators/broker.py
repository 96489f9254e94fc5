"""A broker for demos, emulation and tests: the one that is given, or a private child of ours.

A private broker listens on the loopback device only, keeps nothing, and ends when we end, even by ``kill -9``: a
shell between us and it waits for the end of a pipe that only we hold.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from edgepfl.errors import BusError

# "$@" is the broker.  Whichever ends first, it or our end of the pipe, ends the other.
_GUARD = """
exec 3<&0
"$@" 3<&- </dev/null >&2 & broker=$!
echo $broker
{ read -r _ <&3; kill $broker; } >/dev/null 2>&1 & guard=$!
exec >&-
wait $broker
kill $guard 2>/dev/null
"""
_START = 15.0  # seconds until a broker has to answer
_PORTS = 5  # to try: another process may take one between our choice and the broker's start
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
max_queued_messages 20000
max_inflight_messages 16
max_packet_size 1048576
log_type error
log_type warning
log_type notice
log_type information
connection_messages false
"""
# The segments are the broker's memory: for each filter it keeps up to two of them.  Nothing of ours needs its queue.
_IOTCORE = """\
id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = 16777216
max_segment_count = 2
[v5.1]
name = "v5"
listen = "127.0.0.1:{port}"
next_connection_delay_ms = 1
[v5.1.connections]
connection_timeout_ms = 60000
max_payload_size = 1048576
max_inflight_count = 100
dynamic_filters = true
"""


@dataclass(frozen=True)
class _Kind:
    name: str
    settings: str
    command: Callable[[Path], list[str]]


def _mosquitto(settings: Path) -> list[str]:
    return [shutil.which("mosquitto", path=_search_path()) or "mosquitto", "-c", str(settings)]


def _iotcore(settings: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "iotcore", "--config", str(settings), "--log-level", "CRITICAL"]


_KINDS = {
    "mosquitto": _Kind("mosquitto", _MOSQUITTO, _mosquitto),
    "iotcore": _Kind("iotcore", _IOTCORE, _iotcore),
}


class BrokerHandle:
    """A broker that somebody else runs; :class:`PrivateBroker` is one of ours.

    Attributes:
        url: "mqtt://HOST:PORT".
        name: "given", "mosquitto" or "iotcore".
    """

    def __init__(self, url: str, name: str = "given") -> None:
        self.url = url
        self.name = name

    @property
    def process(self) -> int | None:
        """The number of its process, if it is ours and runs."""
        return None

    def start(self) -> None:
        """Start it, again on the same port; returns when it answers.

        Raises:
            BusError: it does not start; the message ends with what it logged.
        """

    def stop(self) -> None:
        """End it, if it is ours."""

    def close(self) -> None:
        """End it for good, if it is ours."""

    def kill(self) -> None:
        """End it as a crash would, if it is ours."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PrivateBroker(BrokerHandle):
    """A broker in a process of its own, on the loopback device; not started yet."""

    def __init__(self, kind: Literal["mosquitto", "iotcore"]) -> None:
        super().__init__("", kind)
        self._kind = _KINDS[kind]
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._broker = 0  # process id
        self._folder = tempfile.TemporaryDirectory(prefix="edgepfl-broker-", ignore_cleanup_errors=True)

    @property
    def process(self) -> int | None:
        """The number of its process, while it runs."""
        return self._broker if self._process is not None else None

    def start(self) -> None:
        """Start it, again on the same port; returns when it answers.

        Raises:
            BusError: it does not start; the message ends with what it logged.
        """
        if self._process is not None:
            return
        for _ in range(1 if self._port else _PORTS):
            port = self._port or _free_port()
            if self._launch(port):
                self._port = port
                self.url = f"mqtt://127.0.0.1:{port}"
                return
        raise BusError(f"it does not start: {self.log()[-500:]}", where=self.name, remedy="Give --broker URL instead")

    def stop(self) -> None:
        """End it; it may be started again."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._reap()

    def close(self) -> None:
        """End it, and remove its files."""
        self.stop()
        self._folder.cleanup()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            os.kill(self._broker, signal.SIGKILL)
            self._reap()

    def log(self) -> str:
        """What it logged since its last start."""
        path = self._path("log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _launch(self, port: int) -> bool:
        settings = self._path("broker.toml")
        administrator = "user root\n" if self.name == "mosquitto" and os.geteuid() == 0 else ""
        settings.write_text(self._kind.settings.format(port=port) + administrator)
        with self._path("log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own command line
                ["/bin/sh", "-c", _GUARD, "guard", *self._kind.command(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: the broker outlives its clients
            )
        if self._process.stdout is None:
            raise AssertionError("a pipe was asked for")
        self._broker = int(self._process.stdout.readline() or 0)
        self._process.stdout.close()
        return self._answers(port, self._process)

    def _answers(self, port: int, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if self._listens(port):
                return True
            time.sleep(0.01)
        self.stop()
        return False

    def _listens(self, port: int) -> bool:
        # mosquitto says when it has its port: whoever else answers there cannot be mistaken for it.
        if self.name == "mosquitto":
            return "running" in self.log()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name


def installed(kind: Literal["mosquitto", "iotcore"]) -> bool:
    """Whether a private broker of this kind can be started."""
    if kind == "mosquitto":
        return shutil.which("mosquitto", path=_search_path()) is not None
    return importlib.util.find_spec("iotcore") is not None


def open_broker(url: str | None = None, *, kind: Literal["auto", "mosquitto", "iotcore"] = "auto") -> BrokerHandle:
    """A running broker: the one at ``url``, else a private mosquitto, else a private iotcore.

    Raises:
        BusError: none is installed, or it does not start.
    """
    if url is not None:
        return BrokerHandle(url)
    for candidate in ("mosquitto", "iotcore") if kind == "auto" else (kind,):
        if installed(candidate):
            broker = PrivateBroker(candidate)
            try:
                broker.start()
            except BusError:
                broker.close()
                raise
            return broker
    raise BusError(
        "there is no MQTT broker",
        where="mosquitto, iotcore" if kind == "auto" else kind,
        remedy="Install one (apt install mosquitto, or pip install 'edgepfl[sim]'), or give --broker URL",
    )


def _search_path() -> str:
    # Debian puts mosquitto where a normal user's PATH does not look.
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
