"""pFedMac's three levels over the bus are the pure functions of coordinator.hub.levels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from _levels import HUBS, ended, examples_of, two_levels
from _plans import bundle_of
from _scripted import config, play
from _three_levels import HubReport, Play, combine, train

from coordinator import updater
from coordinator.checkpoint import state_in
from coordinator.hub.levels import Hub, Nested
from coordinator.hub.service import Modelling
from edgepfl import codec
from edgepfl.algorithms import Cohort
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.blobs import BlobStore
from edgepfl.plan import Plan, Role, Weighting
from edgepfl.seeds import generator
from edgepfl.tree import Tree, Trees
from edgepfl.wire import Task

pytestmark = pytest.mark.usefixtures("impatient")

ROUNDS = 3


def change(w: Tree, device: str) -> Tree:
    """What a device's training does to the model: a third of the way to its own."""
    own = generator(0, "own model", device)
    return w.map(lambda array: np.asarray((own.standard_normal(array.shape) - array) / 3, np.float32))


def trained(plan: Plan, task: Task, device: str, kept: bytes) -> bytes:  # noqa: ARG001  it keeps nothing
    down = {name: slot.tensors for name, slot in plan.by_role(Role.DOWN).items()}
    w = codec.decode(task.download.inline, down)["w"]
    return codec.encode({"delta": change(w, device)})


def pure(bundle: Bundle, form: Modelling) -> Trees:
    algorithm = updater.algorithm_of(bundle.plan, {})

    def playing(devices: tuple[str, ...]) -> Play:
        return lambda state, _: cohort(devices, state["w"])

    pure_hub = Hub(algorithm, form.rounds, form.nested)

    def cohort(devices: tuple[str, ...], w: Tree) -> Cohort:
        counts = tuple(examples_of(device) for device in devices)
        shares = np.ones(len(devices)) if algorithm.weighting is Weighting.UNIFORM else np.array(counts)
        deltas = [change(w, device) for device in devices]
        mean = Tree(
            {
                name: sum(share * delta[name] for share, delta in zip(shares / shares.sum(), deltas, strict=True))
                for name in w
            }
        )
        total = {"delta": mean.map(lambda array: torch.from_numpy(array.astype(np.float32)))}
        return Cohort(devices, counts, (10,) * len(devices), total, {}, fleet=devices)

    state: Trees = {"w": bundle.model}
    kept: dict[str, Trees] = {hub: {} for hub in HUBS}
    for number in range(1, ROUNDS + 1):
        reports: dict[str, HubReport] = {}
        for hub, devices in HUBS.items():
            reports[hub] = train(
                pure_hub,
                state["w"],
                kept[hub],
                playing(devices),
                number,
            )
            kept[hub] = reports[hub].kept
        state = combine(algorithm, state, reports, number=number)
    return state


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        pytest.param({}, Modelling(3), id="tree"),
        pytest.param({"weighting": "examples"}, Modelling(2), id="by examples"),
        pytest.param({}, Modelling(2, Nested(0.5, 0.4, 0.2)), id="nested"),
        pytest.param({}, Modelling(1, Nested(0.5, 0.4, 0.2)), id="nested, one round"),
    ],
)
def test_three_levels(settings: Mapping[str, str], form: Modelling, tmp_path: Path) -> None:
    bundle = bundle_of("pfedmac", **settings)

    async def scenario() -> None:
        async with two_levels(bundle, tmp_path, HUBS, (), form=form, train=trained) as (world, service):
            run = service.start_run(config(goal=2, minimum=2, rounds=ROUNDS), pack(bundle))
            result = await ended(service, run, {})
            checkpoint = service.journal.checkpoint(run)
        assert result.status == "done"
        state = state_in(BlobStore(tmp_path / "root" / "private"), checkpoint)
        expected = pure(bundle, form)
        for name, array in expected["w"].items():
            np.testing.assert_allclose(state["w"][name], array, rtol=2e-6, atol=1e-7)
        assert world.agents["ant"].tasks[-1].round == ROUNDS * form.rounds + 1

    play(scenario())
