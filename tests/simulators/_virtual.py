"""A small fleet in virtual time, whose log is the same on every machine.

Run as a program, it writes that log to a file: ``python tests/simulators/_virtual.py FILE``, also to renew the golden
one after a change that is meant.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from coordinator.config import RunConfig
from device_agent.data import Examples
from edgepfl.bundle import Bundle, unpack
from edgepfl.eligibility import Conditions
from simulators.profiles import HOUR, Churn, DeviceProfile, Diurnal, Life, dealt, diurnal, profile
from simulators.virtual import Incident, Settings, Simulated, VirtualDevice, simulate

GOLDEN = Path(__file__).parents[1] / "golden" / "virtual"
LOG = GOLDEN / "fleet.log"
SEED = 11


def bundle() -> Bundle:
    """Ditto on a perceptron of 53 parameters, as exported once: its graphs' lengths decide how long they travel."""
    return unpack((GOLDEN / "fleet.bundle").read_bytes())


def examples(number: int) -> Examples:
    """Of one device."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(16 + number % 5, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return Examples(x, y, x[:4], y[:4])


def fleet(count: int, hours: float, churn: Churn, habits: Diurnal | None = None) -> dict[str, VirtualDevice]:
    """Phones and boards that live like people do."""
    names = [f"d{number:03}" for number in range(count)]
    kinds = dealt({"phone-low": 1, "phone-high": 1, "pi-4": 1}, names, SEED)
    return {
        name: VirtualDevice(examples(number), on_onnx(kinds[name]), _life(name, kinds[name], hours, churn, habits))
        for number, name in enumerate(names)
    }


def on_onnx(kind: str) -> DeviceProfile:
    """A profile, but for its runtime: the golden bundle has one only."""
    return msgspec.structs.replace(profile(kind), runtime="onnx")


def _life(name: str, kind: str, hours: float, churn: Churn, habits: Diurnal | None) -> Life:
    trace = diurnal(habits or Diurnal(), name, SEED, hours * HOUR)
    return Life(on_onnx(kind), trace, churn, SEED, name)


def golden_run(log: Path, folder: Path | None = None, seed: int = SEED) -> Simulated:
    """The run of the golden log: conditions, over-selection, churn, and everything killed once."""
    churn = Churn(reboots=2.0, cuts=6.0, fills=1.0, skew=300.0, unset=0.2)
    config = RunConfig(
        rounds=12,
        steps=5,
        goal=4,
        over=1.5,
        minimum=2,
        gather=60.0,
        deadline=600.0,
        lease=90.0,
        seed=SEED,
        attempts=20,
        conditions=Conditions(charging=True, wifi=True, min_interval=1800.0),
    )
    incidents = (
        Incident(60.0, "full", "d006", 900.0),
        Incident(70.03, "kill", "d004", 120.0),
        Incident(90.0, "silence", "d003"),
        Incident(150.0, "cut", "d005"),
        Incident(600.0, "broker", seconds=20.0),
        Incident(1800.0, "coordinator", seconds=30.0),
    )
    return simulate(
        bundle(),
        config,
        fleet(24, 6.0, churn),
        seed=seed,
        until=6 * HOUR,
        incidents=incidents,
        settings=Settings(),
        log=log,
        folder=folder,
    )


if __name__ == "__main__":
    golden_run(Path(sys.argv[1]))
