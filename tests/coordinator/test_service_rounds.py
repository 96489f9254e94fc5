"""Whole runs over the bus, with real messages and real uploads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from _scripted import config, coordinating, finished, honest_fleet, play, serving, upload_of

from coordinator import active
from coordinator.screen import screen
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.plan import Plan, Role
from edgepfl.tree import Trees
from edgepfl.wire import Commit, Task

pytestmark = pytest.mark.usefixtures("impatient")


async def _run(bundle: Bundle, state: Path, *, times: int = 1) -> tuple[str, tuple[list[object], ...], list[int]]:
    """One run to its end: the final digest, what each device saw, and the bytes out of each round."""
    broker = LoopbackBroker()
    devices = honest_fleet(broker, bundle, times=times)
    async with coordinating(broker, state) as service, serving(*devices):
        run = service.start_run(config(), pack(bundle))
        status = await finished(service, run)
        assert (status.status, status.round, status.why) == ("done", 3, "")
        results = [(result.round, result.device) for result in service.journal.results(run)]
        assert results == [(number, name) for number in (1, 2, 3) for name in ("ant", "bee", "cat")]
        costs = [cost.bytes_out for cost in service.journal.costs(run).values()]
        return status.state_sha256, tuple(list(device.seen) for device in devices), costs


def test_the_model_is_the_one_computed_by_hand(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        digest, seen, _ = await _run(small, tmp_path / "state")
        tasks = [message for message in seen[0] if isinstance(message, Task)]
        assert [(task.round, task.final, task.steps) for task in tasks] == [
            (1, False, 10),
            (2, False, 10),
            (3, True, 0),
        ]
        state = codec.decode((tmp_path / "state" / "private" / digest).read_bytes(), {"w": small.plan.model})["w"]
        specs = {name: slot.tensors for name, slot in small.plan.by_role(Role.UP).items()}
        w = small.model.map(lambda array: array.astype(np.float64))
        for task in tasks[:2]:
            uploads = [codec.decode(upload_of(small.plan, task, name), specs) for name in ("ant", "bee", "cat")]
            w = w + sum((upload["delta"] for upload in uploads[1:]), start=uploads[0]["delta"]) / 3
        for name, expected in w.items():
            np.testing.assert_allclose(state[name], expected, rtol=0, atol=1e-6)

    play(scenario())


def test_everybody_is_told_whose_reports_count(small: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        _, seen, _ = await _run(small, tmp_path / "state")
        for messages in seen:
            commits = [(m.round, m.accepted) for m in messages if isinstance(m, Commit)]
            assert commits == [(number, ("ant", "bee", "cat")) for number in (1, 2, 3)]
            members = [m.cohort for m in messages if isinstance(m, Task)]
            assert [[member.accepted_round for member in cohort] for cohort in members] == [[-1] * 3, [1] * 3, [2] * 3]

    play(scenario())


def test_an_upload_in_chunks(wide: Bundle, tmp_path: Path) -> None:
    async def scenario() -> None:
        digest, _, costs = await _run(wide, tmp_path / "state")
        private = {path.name for path in (tmp_path / "state" / "private").iterdir()}
        assert private == {digest}  # no upload outlives its round
        assert len(costs) == 3
        assert max(costs) < 64 << 10  # what goes out are messages: the bytes of weights come in

    play(scenario())


def test_reports_sent_many_times_count_once(small: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        looked: list[str] = []

        def look(data: bytes, plan: Plan, *, device: str, max_norm: float) -> Trees:
            looked.append(device)
            return screen(data, plan, device=device, max_norm=max_norm)

        once, _, _ = await _run(small, tmp_path / "once")
        monkeypatch.setattr(active, "screen", look)
        often, _, _ = await _run(small, tmp_path / "often", times=5)
        assert once == often
        assert len(looked) == 3 * 2 * 2  # each upload on arrival and when it is folded

    play(scenario())
