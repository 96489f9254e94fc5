"""What came of an emulation, as records: for scripts, tests and pages."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import msgspec


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a device's story.

    Attributes:
        at: seconds since the run began; negative before.
        what: such as "connected", "task", "report", "accepted", "reboot".
        round: of which round; 0: of none.
        detail: for people.
    """

    at: float
    what: str
    round: int = 0
    detail: str = ""


class EmulationReport(msgspec.Struct, frozen=True):
    """An emulation.

    Attributes:
        scenario: its name.
        seed: of everything random.
        time: "real" or "virtual".
        broker: its kind.
        algorithm: what was trained.
        model: likewise.
        agents: devices emulated.
        parameters: of the model, in bytes.
        run: its id.
        status: how the run ended: "done", "failed" or "stopped".
        why: of failed and stopped.
        rounds: committed, with the last one, which only evaluates.
        seconds: of each committed round that trained, by its number.
        reports: that count, by round.
        counted: rounds in which a report of a device counts, by device, as the coordinator has it; its story says what
            it heard of that.
        lost: reports that devices sent in committed rounds and that neither count nor were refused for a reason, and
            devices that do not know in the end what became of their last report.
        abandoned: attempts at a round that came to nothing.
        bytes_in: of each round at the coordinator's socket.
        bytes_out: likewise.
        fleet_bytes_in: at all agents' sockets together, of the whole run.
        fleet_bytes_out: likewise.
        pss_mib: greatest proportional set size by process: "fleet", "coordinator", "broker".
        accuracy: by model ("global", "personal") and device, after the last round.
        metrics: the fleet's means after the last round that had them.
        refused: messages and reports that could not be used, by reason.
        doubled: devices whose name two agents had, and what to do about it.
        quarantined: devices that were left out after failures.
        waits: what the run waited for, each text once, in the order in which it was first seen.
        stories: what each device went through.
        state_sha256: digest of the server's state in the end.
        joules: by device, where profiles have a power model.
        missed: faults of the scenario that happened to nobody, and why.
    """

    scenario: str
    seed: int
    time: str
    broker: str
    algorithm: str
    model: str
    agents: int
    parameters: int
    run: str
    status: str
    why: str = ""
    rounds: int = 0
    seconds: dict[int, float] = {}
    reports: dict[int, int] = {}
    counted: dict[str, int] = {}
    lost: int = 0
    abandoned: int = 0
    bytes_in: dict[int, int] = {}
    bytes_out: dict[int, int] = {}
    fleet_bytes_in: int = 0
    fleet_bytes_out: int = 0
    pss_mib: dict[str, float] = {}
    accuracy: dict[str, dict[str, float]] = {}
    metrics: dict[str, float] = {}
    refused: dict[str, int] = {}
    doubled: dict[str, str] = {}
    quarantined: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    stories: dict[str, tuple[Told, ...]] = {}
    state_sha256: str = ""
    joules: dict[str, float] = {}
    missed: tuple[str, ...] = ()

    @property
    def seconds_per_round(self) -> float:
        """The mean over the committed rounds that trained; 0 without one."""
        return fmean(self.seconds.values()) if self.seconds else 0.0

    @property
    def bytes_per_round(self) -> float:
        """At the coordinator's socket, in and out: the mean over the committed rounds; 0 without one."""
        both = [self.bytes_in.get(number, 0) + self.bytes_out.get(number, 0) for number in self.seconds]
        return fmean(both) if both else 0.0

    @property
    def mean(self) -> float:
        """The mean accuracy of the personal models over the devices; of the global one where no device has its own.

        Raises:
            KeyError: nothing was evaluated.
        """
        return self.mean_of("personal")

    @property
    def worst_decile(self) -> float:
        """Likewise of the worst tenth of the devices, at least one.

        Raises:
            KeyError: nothing was evaluated.
        """
        return self.worst_decile_of("personal")

    def mean_of(self, model: str) -> float:
        """The mean accuracy of a model ("personal" or "global") over the devices.

        Raises:
            KeyError: nothing was evaluated.
        """
        return fmean(self._accuracies(model).values())

    def worst_decile_of(self, model: str) -> float:
        """The mean accuracy of a model with the worst tenth of the devices, at least one.

        Raises:
            KeyError: nothing was evaluated.
        """
        ordered = sorted(self._accuracies(model).values())
        return fmean(ordered[: max(1, len(ordered) // 10)])

    def _accuracies(self, model: str) -> Mapping[str, float]:
        found = self.accuracy.get(model) or (self.accuracy.get("global") if model == "personal" else None)
        if not found:
            raise KeyError(f"no device was evaluated with its {model} model")
        return found
