"""What can tell of a test afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping


class Witness(ABC):
    """A fixture's object that knows what happened in its test."""

    @abstractmethod
    def figures(self) -> Mapping[str, str | int | float]:
        """What JUnit XML shall hold of it, by name; empty if there was nothing."""

    @abstractmethod
    def account(self, test: str) -> str:
        """What to print of it under a test that failed; empty if there was nothing.

        Args:
            test: the node id of the test.
        """
