"""Robust rules, server optimisers and exact sums through the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _plans import bundle_of, model
from _scripted import config, coordinating, finished, honest_fleet, play, serving, upload_of

from coordinator import updater
from coordinator.checkpoint import state_in
from edgepfl import codec
from edgepfl.bundle import pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import ConfigError
from edgepfl.plan import Role
from edgepfl.tree import Tree
from edgepfl.wire import Task

pytestmark = pytest.mark.usefixtures("impatient")
EVERYONE = ("ant", "bee", "cat")


async def trained(folder: Path, name: str = "fedavg", **more: Any) -> tuple[Tree, list[Tree]]:  # noqa: ANN401  settings
    """The model after one round, and the change that each device sent."""
    broker, bundle = LoopbackBroker(), bundle_of(name)
    devices = honest_fleet(broker, bundle, *EVERYONE)
    specs = {slot: plan.tensors for slot, plan in bundle.plan.by_role(Role.UP).items()}
    async with coordinating(broker, folder) as service, serving(*devices):
        run = service.start_run(config(rounds=1, minimum=3, **more), pack(bundle))
        assert (await finished(service, run)).status == "done"
        state = updater.numpy_of(state_in(service.vault.private, service.journal.checkpoint(run)))
        task = next(message for message in devices[0].seen if isinstance(message, Task))
        uploads = [upload_of(bundle.plan, task, name) for name in EVERYONE]
        return state["w"], [codec.decode(upload, specs)["delta"] for upload in uploads]


def moved(w: Tree) -> Tree:
    return w - model()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("median", lambda rows: np.median(rows, axis=0)),
        ("trimmed_mean:0.34", lambda rows: np.sort(rows, axis=0)[1]),
        ("clip:1e9", lambda rows: rows.mean(axis=0)),
    ],
)
def test_a_robust_rule_takes_the_place_of_the_mean(words: str, expected: Any, tmp_path: Path) -> None:  # noqa: ANN401  a function
    async def scenario() -> None:
        w, changes = await trained(tmp_path, robust=words)
        for name, tensor in moved(w).items():
            rows = np.stack([change[name].astype(np.float64) for change in changes])
            np.testing.assert_allclose(tensor, expected(rows), rtol=0, atol=1e-6)

    play(scenario())


def test_a_server_optimiser_steps_along_the_mean_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        words = "fedadam:lr=0.5,beta1=0,beta2=0,tau=0.01"
        w, changes = await trained(tmp_path, server_optimizer=words)
        for name, tensor in moved(w).items():
            mean = np.mean([change[name].astype(np.float64) for change in changes], axis=0)
            np.testing.assert_allclose(tensor, 0.5 * mean / (np.abs(mean) + 0.01), rtol=0, atol=1e-5)

    play(scenario())


def test_exact_sums_are_the_sums(tmp_path: Path) -> None:
    async def scenario() -> None:
        plain, _ = await trained(tmp_path / "plain")
        exact, _ = await trained(tmp_path / "exact", exact=True)
        for name, tensor in plain.items():
            np.testing.assert_allclose(exact[name], tensor, rtol=1e-6)

    play(scenario())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedavg", {"robust": "nonsense"}, "there is no such rule"),
        ("fedavg", {"robust": "krum:1"}, "needs 5 reports"),
        ("fedcr", {"robust": "median"}, "adds up"),
        ("fedavg", {"robust": "median", "exact": True}, "exact sums know no robust rule"),
        ("fedavg", {"server_optimizer": "fedadam:lr=nan"}, "lr"),
        ("feddyn", {"server_optimizer": "fedadam"}, "FedDyn"),
    ],
)
def test_what_cannot_be_is_refused_when_the_run_starts(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path) as service:
            with pytest.raises(ConfigError, match=words):
                service.start_run(config(minimum=3, **settings), pack(bundle_of(name)))
            assert service.journal.run() is None

    play(scenario())
