"""Our own commands as child processes, watched, measured and, on request, killed.

They end when we end, even by a signal that leaves us no time to clean up: a shell beside each waits for the end of a
pipe that only we hold.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from device_agent.footprint import pss
from edgepfl.errors import RunError

GRACE = 10.0  # seconds to end in order
_GUARD = 'read -r _; kill "$1"'


class Command:
    """``edgepfl ...`` in a process of its own, for as long as the context lasts.

    Args:
        arguments: the subcommand and its arguments.
        log: where its output goes.
    """

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.pss_mib = 0.0  # the largest seen

    def start(self) -> None:
        """Start it, or start it again."""
        self._unguard()
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                [sys.executable, "-m", "edgepfl", *self._arguments], stdout=out, stderr=subprocess.STDOUT
            )
        self._guard = subprocess.Popen(  # noqa: S603  our own command line
            ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us: the guard outlives us
        )

    @property
    def process(self) -> int | None:
        """The number of its process, once it was started."""
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL; :meth:`check` finds nothing wrong with that."""
        self._unguard()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Look at it.

        Raises:
            RunError: it ended by itself; the error holds the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            return
        self._unguard()
        tail = self._log.read_text("utf-8", errors="replace").strip().splitlines()[-3:]
        raise RunError(
            f"ended with status {self._process.returncode}: {' | '.join(tail)}", where=f"edgepfl {self._arguments[0]}"
        )

    def measure(self) -> None:
        """Note its proportional set size: what it would give back if it ended."""
        found = None if self._process is None else pss(self._process.pid)
        if found is not None:
            self.pss_mib = max(self.pss_mib, found / 2**20)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unguard()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def _unguard(self) -> None:
        """Dismiss the guard before the process is waited for: then its number may be another's."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        guard.kill()
        guard.wait()
        if guard.stdin is not None:
            guard.stdin.close()
