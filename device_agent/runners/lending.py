"""A runner of which one task leaves what the next one of the same process takes up: the memory of its repeated calls.

To bind a graph's inputs and outputs costs as much as several steps of a small model.  A board does one task a round
and gives the memory back; in a process of hundreds of agents their tasks take turns, and each would bind anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from device_agent.runners import Array, Call, Runner, repeat
from edgepfl.plan import Entry, Graph


class Lending:
    """See :class:`device_agent.runners.Repeating`; a thread has what it took until :meth:`give_back`.

    Args:
        runner: of the bundle.
        graphs: of its plan.
    """

    def __init__(self, runner: Runner, graphs: Mapping[Entry, Graph]) -> None:
        self._runner = runner
        self._graphs = graphs
        self._spare: dict[Entry, list[Call]] = {entry: [] for entry in graphs}
        self._taken = threading.local()

    def run(self, entry: Entry, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See :meth:`device_agent.runners.Runner.run`."""
        return self._runner.run(entry, feeds)

    def repeat(self, entry: Entry) -> Call:
        """See :meth:`device_agent.runners.Repeating.repeat`; its memory is this thread's."""
        try:
            call = self._spare[entry].pop()
        except IndexError:
            call = repeat(self._runner, entry, self._graphs[entry])
        self._of_thread().append((entry, call))
        return call

    def give_back(self) -> None:
        """Let others have what this thread took: it reads none of its outputs any more."""
        taken = self._of_thread()
        while taken:
            entry, call = taken.pop()
            self._spare[entry].append(call)

    def drop(self) -> None:
        """Let go of what this thread took: a call that failed may have left anything behind."""
        self._of_thread().clear()

    def _of_thread(self) -> list[tuple[Entry, Call]]:
        found: list[tuple[Entry, Call]] | None = getattr(self._taken, "calls", None)
        if found is None:
            found = self._taken.calls = []
        return found
