"""Sums of masked uploads: whole numbers, so their order does not matter, and their bits do not depend on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from edgepfl.algorithms import Cohort
from edgepfl.errors import CodecError, RunError
from edgepfl.plan import Reduce, SlotPlan
from edgepfl.secagg.fixed import Words
from edgepfl.secagg.server import Server
from edgepfl.secagg.vector import Layout, read
from edgepfl.tree import Tree
from edgepfl.wire import Report


class Masked:
    """What has been folded so far of an attempt, and what takes its masks off.

    Args:
        layout: of an upload.
        slots: the plan's UP slots.
        run: its id, from which masks are derived.
        device: where the sums go when they are open ("cpu", "cuda").
    """

    def __init__(self, layout: Layout, slots: Mapping[str, SlotPlan], run: str, device: str = "cpu") -> None:
        self._layout = layout
        self._reduce = {name: slot.reduce for name, slot in slots.items()}
        self._run = run
        self._device = device
        self._total: Words = np.zeros(layout.size, layout.fixed.dtype)
        self._reports: dict[str, Report] = {}
        self._server: Server | None = None

    def offer(self, report: Report, data: bytes | memoryview) -> None:
        """Add a masked upload; a device's second is ignored.

        Raises:
            CodecError: not of the declared length.
        """
        if report.device in self._reports:
            return
        self._total += read(data, self._layout, where=f"upload of {report.device}")
        self._reports[report.device] = report

    def open(self, server: Server) -> None:
        """Take these secrets to open the sum with, at :meth:`close`."""
        self._server = server

    def close(
        self,
        devices: Sequence[str],
        *,
        number: int = 1,
        fleet: Iterable[str] = (),
        statistics: tuple[str, ...] = (),
    ) -> Cohort:
        """The sums over ``devices``, without masks; see :meth:`coordinator.reduction.Reduction.close`.

        Raises:
            RunError: other uploads were folded than those that count, or nobody opened them.
            CodecError: what was revealed does not open the sum.
        """
        names = tuple(sorted(devices))
        if tuple(sorted(self._reports)) != names or self._server is None or self._server.survivors != names:
            raise RunError(f"the masks of {len(self._reports)} uploads are not open", where="reduction")
        reports = [self._reports[name] for name in names]
        total = self._opened(self._server)
        sums = self._layout.decode(total)
        examples = sum(report.examples for report in reports)
        if sums.weight != examples:
            raise CodecError(
                f"the devices' reports say {examples} examples, and under the masks there are {sums.weight}: a device "
                "revealed something else than it was given, or masked another weight than it reported",
                where="secagg",
            )
        divisors = {name: self._divisor(name, examples, len(names)) for name in self._reduce}
        return Cohort(
            devices=names,
            examples=tuple(report.examples for report in reports),
            steps=tuple(report.steps for report in reports),
            total={name: self._averaged(tree, divisors[name]) for name, tree in sums.trees.items()},
            stack={},
            number=number,
            fleet=tuple(sorted({*fleet, *names})),
            statistics=statistics,
        )

    def _divisor(self, slot: str, examples: int, devices: int) -> float:
        if self._reduce[slot] is not Reduce.MEAN:
            return 1.0
        return float(examples if slot in self._layout.terms.weighted else devices)

    def _averaged(self, tree: Tree, divisor: float) -> Tree:
        return tree.map(lambda x: torch.from_numpy(x / divisor).float().to(self._device))

    def _opened(self, server: Server) -> Words:
        """The sum with its masks off."""
        from edgepfl.secagg.masks import context  # noqa: PLC0415  it needs cryptography, and only such runs do
        from edgepfl.secagg.opening import masks  # noqa: PLC0415  likewise

        about = context(self._run, server.number, server.attempt)
        total = self._total.copy()
        for each in masks(
            server.graph, server.keys, server.threshold, server.dealt, server.survivors, server.revealed, about
        ):
            each.take_off(total)
        return total
