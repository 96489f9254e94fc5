"""The private sum of a round: clipped, noised, and divided by a number that does not depend on who came.

With the contributions ``D_k`` of the cohort, all of weight 1, McMahan et al. 2018 (arXiv:1710.06963, the estimator with
fixed denominator)::

    mean = (sum_k D_k min(1, C / |D_k|) + N(0, (z C)^2)) / (q N)

An adaptive clip follows a quantile ``gamma`` of the norms (Andrew et al. 2021, arXiv:1905.03871, equation 1)::

    b = (sum_k (1[|D_k| <= C] - 1/2) + N(0, sigma_b^2)) / (q N) + 1/2
    C <- C exp(-eta (b - gamma))
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from coordinator.reduction import Reduction, Upload
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.plan import SlotPlan, Weighting
from edgepfl.privacy import Gaussian, clipped, noised, normals
from edgepfl.privacy.clipping import SLACK
from edgepfl.tree import Tree, Trees

CLIP = "privacy.clip"
"""The server's slot of an adaptive clip, a name that no slot of an algorithm can have."""


@dataclass(frozen=True)
class Adaptive:
    """How a clip follows a quantile of the norms.

    Attributes:
        quantile: ``gamma``.
        rate: ``eta``.
        bits: ``sigma_b``, the standard deviation of the noise on the number of contributions below the clip.
    """

    quantile: float
    rate: float
    bits: float

    def moved(self, clip: float, below: int, devices: int, divisor: float, normal: float) -> float:
        """The next clip.

        Args:
            clip: this one.
            below: how many contributions are not above it.
            devices: of how many.
            divisor: the expected number of devices.
            normal: standard normal.
        """
        part = (below - devices / 2 + self.bits * normal) / divisor + 0.5
        return clip * math.exp(-self.rate * (min(max(part, 0.0), 1.0) - self.quantile))


@dataclass(frozen=True)
class Release:
    """How the sum of a round is made private.

    Attributes:
        clip: ``C``.
        noise: ``z`` of the sum; 0 where devices add noise themselves.
        divisor: ``q N``.
        enforced: whether the coordinator clips again, so that a device that does not clip does no harm.
        rounding: the most that each number of the sum is off because of one device's encoding.
        adaptive: how the clip moves; None where it stays.
    """

    clip: float
    noise: float
    divisor: float
    enforced: bool = True
    rounding: float = 0.0
    adaptive: Adaptive | None = None

    def mechanism(self, count: int) -> Gaussian:
        """The noise on a sum of ``count`` numbers."""
        return Gaussian(self.clip + self.rounding * math.sqrt(count), self.noise)


class Bounded(Reduction):
    """A reduction that gives sums of clipped contributions, float64, in the place of means.

    Args:
        slots: the plan's UP slots.
        cohort: everyone who may still report.
        release: how they are bounded.
        device: where the accumulators live.
        algorithm: that of the round.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotPlan],
        cohort: Iterable[str],
        release: Release,
        device: str = "cpu",
        algorithm: Algorithm | None = None,
    ) -> None:
        super().__init__(slots, cohort, Weighting.UNIFORM, device, algorithm)
        self._release = release
        self.below = 0

    def offer(self, device: str, upload: Upload) -> None:
        """See :meth:`~coordinator.reduction.Reduction.offer`."""
        super().offer(device, dataclasses.replace(upload, load=partial(self._loaded, upload)))

    def _loaded(self, upload: Upload) -> Trees:
        """One contribution within the bound; it is loaded once, when it is folded."""
        trees = upload.load()
        if not self._release.enforced:
            return trees
        bounded, norm = clipped(trees, self._release.clip)
        self.below += norm <= self._release.clip * (1 - 2 * SLACK)  # what a device clipped lies SLACK below the clip
        return bounded

    def _totals(self, weight: float) -> dict[str, Tree]:  # noqa: ARG002  sums, of which everyone has the same weight
        return {name: each.total() for name, each in self._sums.items()}


def released(release: Release, sums: Trees, below: int, devices: int, key: bytes) -> tuple[Trees, float]:
    """The private means of a round, float64 NumPy, and the clip of the next one.

    Args:
        release: how.
        sums: of the contributions, NumPy.
        below: how many contributions were within the clip.
        devices: how many there are.
        key: for these sums alone.
    """
    count = sum(np.size(tensor) for tree in sums.values() for tensor in tree.values())
    noisy = noised(sums, release.mechanism(count), _key(key, "sum"))
    means = {slot: tree / release.divisor for slot, tree in noisy.items()}
    if release.adaptive is None:
        return means, release.clip
    normal = float(normals(_key(key, "bits"), 1)[0])
    return means, release.adaptive.moved(release.clip, below, devices, release.divisor, normal)


def blurred(release: Release, got: Cohort, sums: Trees, below: int, key: bytes) -> tuple[Cohort, Trees]:
    """What an algorithm's update may see of a round, and what the server remembers.

    The update sees no device, no number of examples and no number of reports: of these nothing is private.

    Args:
        release: how the sums are made private.
        got: what the round brought in.
        sums: of the contributions, torch.
        below: how many contributions were within the clip.
        key: for these sums alone.
    """
    where = next((tensor.device for tree in sums.values() for tensor in tree.values()), torch.device("cpu"))
    numbers = {slot: tree.map(lambda x: x.detach().cpu().numpy()) for slot, tree in sums.items()}
    means, clip = released(release, numbers, below, len(got.devices), key)
    total = {slot: tree.map(lambda x: torch.from_numpy(np.float32(x)).to(where)) for slot, tree in means.items()}
    blind = Cohort((), (), (), total, {}, got.number, (), got.statistics, got.across)
    return blind, {} if release.adaptive is None else {CLIP: Tree.scalar(torch.tensor(clip, dtype=torch.float32))}


def clip_of(state: Trees, first: float) -> float:
    """The clip of the next round, from the server's state."""
    return float(state[CLIP].value) if CLIP in state else first


def public(state: Trees) -> Trees:
    """The server's state as an algorithm's update knows it."""
    return {slot: tree for slot, tree in state.items() if slot != CLIP}


def key_for(secret: bytes, devices: Sequence[str], uploads: Sequence[str]) -> bytes:
    """The key of the noise on one sum: with other devices, or other uploads, it is another.

    Args:
        secret: of the attempt.
        devices: whose contributions are in the sum.
        uploads: digests of these.
    """
    text = "\n".join(f"{device} {upload}" for device, upload in zip(devices, uploads, strict=True))
    return hashlib.blake2b(text.encode(), key=secret, digest_size=32).digest()


def _key(key: bytes, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=32).digest()
