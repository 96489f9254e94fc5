"""Devices with quadratic losses, fused by an engine and by a NumPy program with a loop over pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from edgepfl.algorithms._fusion import Columns, Engine, Opening
from edgepfl.algorithms._scad import Scad
from edgepfl.tree import Trees

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Turn:
    """One round.

    Attributes:
        active: the places of those who train.
        newcomers: how many join before it.
        lam: strength of the penalty.
        rho: of the duals, and of the pull.
        both: the rule of pairs.
        xi: smoothing of the penalty.
    """

    active: tuple[int, ...]
    newcomers: int = 0
    lam: float = 0.8
    rho: float = 1.0
    both: bool = False
    xi: float = 0.05

    @property
    def scad(self) -> Scad:
        return Scad(self.lam, 3.7, self.xi, self.rho)


@dataclass(frozen=True)
class Fleet:
    """Devices whose losses are ``q/2 (omega - b)^2``, with ``b`` near the centres of a few clusters."""

    first: Array
    b: Array
    q: Array
    unpaired: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        m: int,
        d: int,
        *,
        clusters: int = 3,
        apart: float = 4.0,
        noise: float = 0.4,
        seed: int = 0,
        unpaired: int = 0,
    ) -> Fleet:
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(clusters, d)) * apart / np.sqrt(d)
        b = centres[np.arange(m) % clusters] + noise * rng.normal(size=(m, d)) / np.sqrt(d)
        return cls(rng.normal(size=d), b, rng.uniform(0.5, 1.5, (m, d)), np.arange(d) >= d - unpaired)

    def trained(self, places: Sequence[int], omega: Array, zeta: Array, rho: float) -> Array:
        at = list(places)
        for _ in range(5):
            omega = omega - 0.15 * (self.q[at] * (omega - self.b[at]) + rho * ~self.unpaired * (omega - zeta))
        return omega


@dataclass
class Loops:
    """FPFC's server from the paper, every ordered pair stored and moved in a loop."""

    first: Array
    unpaired: NDArray[np.bool_]
    omega: list[Array] = field(default_factory=list)
    theta: dict[tuple[int, int], Array] = field(default_factory=dict)
    v: dict[tuple[int, int], Array] = field(default_factory=dict)
    regions: set[int] = field(default_factory=set)
    became_flat: int = 0  # pairs that left a dual behind as they became flat

    def join(self, newcomers: int) -> None:
        for _ in range(newcomers):
            new = len(self.omega)
            self.omega.append(self.first)
            for other in range(new):
                for pair in ((new, other), (other, new)):
                    self.theta[pair] = self.v[pair] = np.zeros(len(self.first))

    def zeta(self, i: int, rho: float) -> Array:
        total = sum(self.omega)
        shares = [self.theta[i, j] - self.v[i, j] / rho for j in range(len(self.omega)) if j != i]
        return np.asarray((total + sum(shares)) / len(self.omega))

    def coefficient(self, n: float, s: Scad) -> float:
        if s.lam == 0:
            return 1.0
        if n <= s.xi + s.lam / s.rho:
            region, c = 1, s.xi * s.rho / (s.lam + s.xi * s.rho)
        elif n <= s.lam + s.lam / s.rho:
            region, c = 2, 1 - s.lam / (s.rho * n)
        elif n <= s.a * s.lam:
            slope = (s.a - 1) * s.rho
            region, c = 3, max(0.0, 1 - s.a * s.lam / (slope * n)) / (1 - 1 / slope)
        else:
            region, c = 4, 1.0
        self.regions.add(region)
        return c

    def move(self, turn: Turn, uploaded: Array) -> None:
        for place, row in zip(turn.active, uploaded, strict=True):
            self.omega[place] = row
        for i in range(len(self.omega)):
            for j in range(i + 1, len(self.omega)):
                active = [end in turn.active for end in (i, j)]
                if not (all(active) if turn.both else any(active)):
                    continue
                apart = np.where(self.unpaired, 0, self.omega[i] - self.omega[j])
                delta = apart + self.v[i, j] / turn.rho
                c = self.coefficient(float(np.linalg.norm(delta)), turn.scad)
                self.became_flat += c == 1.0 and bool(np.abs(self.v[i, j]).max() > 1e-3)
                theta = c * delta
                v = self.v[i, j] + turn.rho * (apart - theta)
                self.theta[i, j], self.v[i, j] = theta, v
                self.theta[j, i], self.v[j, i] = -theta, -v


def columns_of(fleet: Fleet, device: str, part: slice = slice(None)) -> Columns:
    """What an engine has to know of the columns."""
    unpaired = torch.tensor(fleet.unpaired[part], device=device) if fleet.unpaired.any() else None
    return Columns(torch.tensor(fleet.first[part], device=device), unpaired)


@dataclass
class Run:
    """An engine that drives its own devices, so that its errors would add up."""

    fleet: Fleet
    engine: Engine
    device: str = "cpu"

    def turn(self, turn: Turn) -> Array:
        """One round; the centres before it."""
        self.engine.join(turn.newcomers)
        zeta: Array = self.engine.centres(turn.active, turn.rho).cpu().numpy()
        omega = self.engine.omega(turn.active).cpu().numpy()
        uploaded = self.fleet.trained(turn.active, omega, zeta, turn.rho)
        self.engine.move(turn.active, torch.tensor(uploaded, device=self.device), turn.scad, both=turn.both)
        return zeta


def loops_turn(fleet: Fleet, loops: Loops, turn: Turn) -> Array:
    """Likewise, of the NumPy program."""
    loops.join(turn.newcomers)
    zeta = np.stack([loops.zeta(i, turn.rho) for i in turn.active])
    omega = np.stack([loops.omega[i] for i in turn.active])
    loops.move(turn, fleet.trained(turn.active, omega, zeta, turn.rho))
    return zeta


def assert_same(engine: Engine, loops: Loops, rho: float, tolerance: float = 1e-10) -> None:
    """Models, centres, pairs and norms of an engine are those of the NumPy program."""
    count = len(loops.omega)

    def near(tensor: torch.Tensor, expected: Array | list[Array]) -> None:
        np.testing.assert_allclose(tensor.cpu().numpy(), expected, rtol=0, atol=tolerance)

    everyone = range(count)
    assert engine.count == count
    near(engine.omega(everyone), np.stack(loops.omega))
    near(engine.mean(), np.mean(loops.omega, axis=0))
    near(engine.centres(everyone, rho), np.stack([loops.zeta(i, rho) for i in everyone]))
    near(engine.omega_norms(), np.linalg.norm(loops.omega, axis=1))
    theta = np.zeros((count, count))
    for i, j in loops.theta:
        theta[i, j] = np.linalg.norm(loops.theta[i, j])
        for tensor, expected in zip(engine.pair(i, j), (loops.theta[i, j], loops.v[i, j]), strict=True):
            near(tensor, expected)
    np.testing.assert_allclose(engine.theta_norms().cpu().numpy(), theta, rtol=0, atol=1e-7)  # a root of a difference


def follow(opening: Opening, fleet: Fleet, turns: Sequence[Turn], device: str = "cpu", every: int = 1) -> Loops:
    """Drive an engine and the NumPy program through the same rounds and compare all that they have.

    Args:
        opening: makes the engine.
        fleet: the devices.
        turns: the rounds.
        device: where the engine calculates.
        every: compare all pairs in every so many rounds; the centres always.
    """
    loops = Loops(fleet.first, fleet.unpaired)
    run = Run(fleet, opening(columns_of(fleet, device), {}), device)
    for number, turn in enumerate(turns):
        zeta = run.turn(turn)
        np.testing.assert_allclose(zeta, loops_turn(fleet, loops, turn), rtol=0, atol=1e-10)
        if number % every == 0 or number == len(turns) - 1:
            assert_same(run.engine, loops, turn.rho * (1.5 if number % 2 else 1))
    return loops


def sampled(m: int, share: float, rounds: int, *, seed: int = 3, **settings: float) -> list[Turn]:
    """Rounds in which a share of ``m`` devices takes part; all have joined before the first."""
    rng = np.random.default_rng(seed)
    count = max(round(share * m), 1)
    drawn = [tuple(sorted(rng.choice(m, count, replace=False).tolist())) for _ in range(rounds)]
    return [Turn(active, m if number == 0 else 0, **settings) for number, active in enumerate(drawn)]  # type: ignore[arg-type]  # by name


def copied(dump: Trees) -> Trees:
    """A dump as a disk would give it back."""
    return {slot: tree.map(torch.clone) for slot, tree in dump.items()}


def flattened(dump: Trees) -> dict[str, torch.Tensor]:
    """Every tensor of a dump by slot and name."""
    return {f"{slot}/{name}": tensor for slot, tree in dump.items() for name, tensor in tree.items()}


def assert_bits(one: Trees, other: Trees) -> None:
    """Two dumps are the same, bit for bit."""
    left, right = flattened(one), flattened(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        assert torch.equal(tensor, right[name]), name
