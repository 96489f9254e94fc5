"""A partition as a value and as text: who has which labels, how many examples, and how a device sees them.

::

    dirichlet:0.3                        labels by a Dirichlet distribution
    mixes:0.3                            mixes of labels by a Dirichlet distribution, equal sizes
    classes:2+power:1.2                  two classes a device, and sizes by a power law
    iid+sizes:0.5,least=20+noise:0.1     the same mix everywhere, unequal sizes, ever more noise

Parts are joined by ``+``: at most one says how labels go, at most one how sizes do, and any number how features shift.
Without one for the labels they go by chance (``iid``); where the data have devices by nature, they stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.partition import Counts, Indices, Labels, by_classes, deal_out, dirichlet
from simulators.partition_shift import Noise, Offset, Rotation, Scale, Shift, Turn
from simulators.partition_sizes import Law, Lognormal, Power, Sizes, mixed, resized, sizes
from simulators.text_options import keyed, record

LEAST = 8
"""Examples of a device, where no part says otherwise."""


@dataclass(frozen=True)
class Iid:
    """Labels go by chance, in equal numbers of examples unless a law says otherwise."""


@dataclass(frozen=True)
class Dirichlet:
    """See :func:`simulators.partition.dirichlet`."""

    alpha: float


@dataclass(frozen=True)
class Classes:
    """See :func:`simulators.partition.by_classes`."""

    classes: int


@dataclass(frozen=True)
class Mixes:
    """Each device's mix of labels is a draw from ``Dirichlet(alpha p)``, p being the mix of all examples.

    Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual classification"
    (arXiv 1909.06335), section 3: in equal numbers of examples, until the classes run out.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise ConfigError(f"alpha is {self.alpha}", where="partition mixes", remedy="Give a finite number above 0")


LabelRule: TypeAlias = Iid | Dirichlet | Classes | Mixes

PARTS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "iid": Iid,
        "dirichlet": Dirichlet,
        "classes": Classes,
        "mixes": Mixes,
        "power": Power,
        "sizes": Sizes,
        "lognormal": Lognormal,
        "rotation": Rotation,
        "turn": Turn,
        "scale": Scale,
        "offset": Offset,
        "noise": Noise,
    }
)
"""The parts by name."""


@dataclass(frozen=True)
class Partition:
    """How examples are dealt out.

    Attributes:
        labels: which labels a device has; None: as the data have it.
        law: how many examples.
        shifts: how it sees them.
    """

    labels: LabelRule | None = None
    law: Law | None = None
    shifts: tuple[Shift, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Partition:
        """See the module's text.

        Raises:
            ConfigError: a part is unknown, or there are two that say the same.
        """
        found = [_part(piece) for piece in text.split("+")]
        labels = [each for each in found if isinstance(each, LabelRule)]
        laws = [each for each in found if isinstance(each, Law)]
        if len(labels) > 1 or len(laws) > 1:
            raise ConfigError(
                f"{text!r} says twice how {'labels' if len(labels) > 1 else 'sizes'} go",
                where="partition",
                remedy="Give one of iid, dirichlet, classes, mixes and one of power, sizes, lognormal",
            )
        shifts = tuple(each for each in found if isinstance(each, Shift))
        return cls(next(iter(labels), None), next(iter(laws), None), shifts)

    def deal(self, labels: Labels, devices: int, seed: int) -> list[Indices]:
        """Each device's examples, as ascending indices into ``labels``; shifts are not part of it.

        Every example goes to one device.  Only with ``dirichlet`` or ``classes`` *and* a law may some be left over: no
        dealing of everything has any given sizes and any given classes, see :func:`simulators.partition_sizes.resized`.

        Args:
            labels: (examples,), any integers.
            devices: how many parts.
            seed: the same seed gives the same parts.

        Raises:
            ConfigError: there are too few examples for so many devices.
        """
        match self.labels:
            case Dirichlet(alpha):
                return self._resized(labels, dirichlet(labels, devices, alpha=alpha, seed=seed), seed)
            case Classes(classes):
                return self._resized(labels, by_classes(labels, devices, classes=classes, seed=seed), seed)
            case Mixes(alpha):
                return self._by_mixes(labels, devices, alpha, seed)
            case _:
                return self._by_chance(len(labels), devices, seed)

    def _by_chance(self, total: int, devices: int, seed: int) -> list[Indices]:
        rng = generator(seed, "partition", "iid", devices)
        counts = self._sizes(total, devices, rng)
        return [np.sort(hand) for hand in np.split(rng.permutation(total), np.cumsum(counts)[:-1])]

    def _by_mixes(self, labels: Labels, devices: int, alpha: float, seed: int) -> list[Indices]:
        rng = generator(seed, "partition", "mixes", devices)
        wanted = self._sizes(len(labels), devices, rng)
        _, totals = np.unique(labels, return_counts=True)
        wishes = rng.dirichlet(alpha * totals / len(labels), devices)
        return deal_out(labels, mixed(wishes, wanted, totals.astype(np.int64)), rng)

    def _sizes(self, total: int, devices: int, rng: np.random.Generator) -> Counts:
        if devices < 1:
            raise ConfigError(f"{devices} devices are no fleet", where="partition", remedy="Ask for 1 or more")
        shares = np.full(devices, 1 / devices) if self.law is None else self.law.shares(devices, rng)
        return sizes(total, shares, LEAST if self.law is None else self.law.least)

    def _resized(self, labels: Labels, hands: list[Indices], seed: int) -> list[Indices]:
        if self.law is None:
            return hands
        rng = generator(seed, "partition", "sizes", len(hands))
        wanted = sizes(len(labels), self.law.shares(len(hands), rng), self.law.least)
        _, classes = np.unique(labels, return_inverse=True)
        before = np.stack([np.bincount(classes[hand], minlength=classes.max() + 1) for hand in hands])
        counts = resized(before, wanted, self.law.least)
        nobody = before.sum(axis=0) - counts.sum(axis=0)
        return deal_out(labels, np.vstack([counts, nobody]), rng)[:-1]


def _part(text: str) -> object:
    """``NAME[:VALUE][,KEY=VALUE...]``; the value is of the part's first field."""
    head, options = keyed(text, where="partition")
    name, colon, value = head.partition(":")
    if name not in PARTS:
        raise ConfigError(f"there is no {name!r}", where="partition", remedy=f"Name one of {', '.join(PARTS)}")
    kind = PARTS[name]
    names = [field.name for field in fields(kind)]
    if colon and (not names or names[0] in options):
        raise ConfigError(f"{text!r} has one value too many", where="partition", remedy=f"Write {name}")
    given = {names[0]: value, **options} if colon else options
    return record(kind, given, where=f"partition {text}")
