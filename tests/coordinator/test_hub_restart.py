"""A hub dies at every point at which its storage changes; started again, it brings the run to the same bits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _levels import Outcome, World, ended, flat, present, two_levels
from _plans import bundle_of
from _scripted import config, play

from coordinator.hub.levels import Nested
from coordinator.hub.service import HubService, Modelling
from edgepfl.bundle import pack
from edgepfl.errors import StoreError

pytestmark = pytest.mark.usefixtures("impatient")

HUBS = {"north": ("ant", "bee")}
NAMES = ("ant", "bee", "fly")
EVERY = 3  # writes: an odd number, since many come in pairs
WRITES = ("create", "open_round", "append", "commit", "end")


class PowerCutError(StoreError):
    """The hub is dead."""


@dataclass
class Cut:
    """Ends a hub at one of its writes, before or after it is made.

    Attributes:
        at: number of the write; -1 for none.
        after: whether it is made.
        seen: what was written, and in which phase the hub was.
        dead: whether the hub is to be started again.
        over: whether the run has ended.
    """

    at: int
    after: bool
    seen: list[tuple[str, str]] = field(default_factory=list)
    dead: bool = False
    over: bool = False

    def into(self, hub: HubService) -> HubService:
        """The hub, with every write watched."""
        for name in WRITES:
            self._around(hub, hub.journal, name)
        for store in (hub.vault.offered.local, hub.vault.private.local, hub.upward):
            for name in ("put", "keep_only"):
                self._around(hub, store, name)
        self._around(hub, hub, "_store")
        return hub

    def _around(self, hub: HubService, thing: Any, name: str) -> None:  # noqa: ANN401  a journal or a store
        write: Callable[..., Any] = getattr(thing, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  it stands for any method
            if self.dead:
                raise PowerCutError("there is no power")
            here = len(self.seen) == self.at
            run = hub._run
            self.seen.append((name, run.round.phase if run is not None else ""))
            if here and not self.after:
                self._cut()
            result = write(*arguments, **named)
            if here and self.after:
                self._cut()
            return result

        setattr(thing, name, wrapped)

    def _cut(self) -> None:
        self.dead = True
        raise PowerCutError("the power is cut")


async def _kept_alive(world: World, cut: Cut, form: Modelling | None) -> None:
    """A hub that is started again whenever the power was cut; all its devices must take part."""
    while not cut.over:
        hub = cut.into(world.hub("north", form=form, minimum=2))
        cut.dead = False
        try:
            await hub.run()
        except StoreError:
            assert cut.dead
            cut.at = -1


async def _run(name: str, folder: Path, cut: Cut, form: Modelling | None) -> Outcome:
    bundle = bundle_of(name)
    async with two_levels(bundle, folder, HUBS, ("fly",), without=("north",)) as (world, service):
        keeping = asyncio.ensure_future(_kept_alive(world, cut, form))
        try:
            await present(service, "north", members=2)
            run = service.start_run(config(goal=2, minimum=2, rounds=2), pack(bundle))
            ending = asyncio.ensure_future(ended(service, run, world.agents))
            await asyncio.wait({ending, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                keeping.result()
            return await ending
        finally:
            cut.over = True
            keeping.cancel()
            with suppress(asyncio.CancelledError, PowerCutError):  # at one of its last writes
                await keeping


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it"])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param("scaffold", None, id="sums"),
        pytest.param("pfedmac", Modelling(2, Nested(0.5, 0.4, 0.2)), id="a model of its own"),
    ],
)
def test_a_power_cut_anywhere(name: str, form: Modelling | None, tmp_path: Path, *, after: bool) -> None:
    async def scenario() -> None:
        undisturbed = Cut(-1, after)
        expected = await _run(name, tmp_path / "undisturbed", undisturbed, form)
        if form is None:
            assert expected == await flat(bundle_of(name), tmp_path / "flat", NAMES, rounds=2)
        assert {phase for _, phase in undisturbed.seen} >= {"selecting", "reporting", "reducing", "committed"}
        for at in range(int(after), len(undisturbed.seen), EVERY):
            cut = Cut(at, after)
            found = await _run(name, tmp_path / str(at), cut, form)
            assert (at, undisturbed.seen[at], found) == (at, undisturbed.seen[at], expected)
            assert cut.at == -1

    play(scenario())
