"""A run whose coordinator and devices start anew after every round ends with the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _exported import DEVICES, EVERY, Exported, exported
from _federation import Federation, assert_same_bits

from coordinator.checkpoint import Vault
from coordinator.journal import Checkpoint
from edgepfl import codec
from edgepfl.bundle import unpack
from edgepfl.plan import Role
from simulators.federation import Moved

COHORTS = (("pi-1", "pi-2"), ("pi-2",), ("pi-1", "pi-3"), ("pi-2", "pi-3"), ("pi-1", "pi-2", "pi-3"))


@dataclass
class Disk:
    """What is left of a run when all its processes end.

    Attributes:
        folder: of the coordinator's blobs.
        checkpoint: of the server's state.
        kept: each device's KEEP slots.
        history: for the comparison only.
    """

    folder: Path
    checkpoint: Checkpoint | None = None
    kept: dict[str, bytes] = field(default_factory=dict)
    history: list[Moved] = field(default_factory=list)

    @property
    def vault(self) -> Vault:
        """Opened anew."""
        return Vault.at(self.folder)

    def revive(self, subject: Exported) -> Federation:
        """The run as new processes find it."""
        federation = Federation(Exported(subject.algorithm, subject.model, subject.data, unpack(subject.data)))
        own = {slot: each.tensors for slot, each in federation.plan.by_role(Role.KEEP).items()}
        if self.checkpoint is not None:
            federation.server = self.vault.load(federation.algorithm, self.checkpoint).state
        federation.kept = {device: codec.decode(data, own) for device, data in self.kept.items()}
        federation.history = self.history
        return federation

    def save(self, federation: Federation) -> None:
        """After a round."""
        number = len(federation.history)
        self.checkpoint = self.vault.save(federation.algorithm, number, federation.server).checkpoint
        self.kept = {device: codec.encode(trees) for device, trees in federation.kept.items()}
        self.history = federation.history


@pytest.mark.parametrize("name", EVERY)
def test_state_and_keep_survive_a_restart_after_every_round_to_the_bit(name: str, tmp_path: Path) -> None:
    subject = exported(name)
    disk = Disk(tmp_path)
    for cohort in COHORTS:
        federation = disk.revive(subject)
        federation.round(cohort)
        disk.save(federation)
    stored, in_memory = disk.revive(subject), Federation(subject).run(COHORTS)
    assert_same_bits(stored.everything(), in_memory.everything())
    assert len(stored.history) == len(COHORTS)
    assert disk.kept.keys() == DEVICES.keys()


@pytest.mark.parametrize("name", EVERY)
def test_a_stored_state_gives_the_devices_the_same_download(name: str, tmp_path: Path) -> None:
    federation = Federation(exported(name)).run()
    disk = Disk(tmp_path)
    disk.save(federation)
    assert disk.checkpoint is not None
    saved = disk.vault.load(federation.algorithm, disk.checkpoint)
    for device in DEVICES:
        found, expected = (
            disk.vault.download(federation.algorithm, state, device) for state in (saved.state, federation.server)
        )
        assert found == expected
        assert saved.download in (found, None)
    assert saved.checkpoint == disk.vault.save(federation.algorithm, 3, saved.state).checkpoint
