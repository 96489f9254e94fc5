"""One device of an emulated fleet, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulators.emulation import Emulation, EmulationReport, Told
from simulators.pytest_plugin import story
from simulators.pytest_plugin.background import Background


class Device:
    """A device.

    Args:
        name: its name.
        told: its story so far.
        report: the fleet's report.
        running: the fleet while it runs.
    """

    def __init__(
        self,
        name: str,
        told: Callable[[str], tuple[Told, ...]],
        report: Callable[[], EmulationReport],
        running: Callable[[], tuple[Emulation, Background]],
    ) -> None:
        self.name = name
        self._told = told
        self._report = report
        self._running = running

    def __repr__(self) -> str:
        return f"<device {self.name}>"

    def __str__(self) -> str:
        return story.story(self.name, self.story)

    @property
    def story(self) -> tuple[Told, ...]:
        """What it went through so far."""
        return self._told(self.name)

    @property
    def accuracy(self) -> Mapping[str, float]:
        """Of its models ("personal", "global"), on its own test data, after the last round."""
        found = self._report().accuracy
        return {model: devices[self.name] for model, devices in found.items() if self.name in devices}

    def told(self, text: str) -> bool:
        """Whether its story has an event of this name, or one whose detail holds this text."""
        return any(text == each.what or text in each.detail for each in self.story)

    def kill(self) -> None:
        """Cut its power."""
        emulation, background = self._running()
        background.run(emulation.kill(self.name))

    def revive(self) -> None:
        """Give it its power back."""
        emulation, background = self._running()
        background.run(emulation.revive(self.name))

    def cut(self) -> None:
        """Cut its connection, once."""
        emulation, background = self._running()
        background.run(emulation.cut(self.name))
