"""MNIST with a few digits a device and unequal numbers of examples, as pFedMe's authors deal it out.

T. Dinh et al. 2020, "Personalized federated learning with Moreau envelopes", and the authors' program of that year
(CharlieDinh/pFedMe, ``data/Mnist/generate_niid_20users.py`` before June 2021): device ``u`` has the digits ``u``,
``u + 1``, ... modulo 10; each digit's examples, training and test images together, fall into random parts, one for each
device that has it; pixels are standardised over all images; a random quarter of a device's examples is for testing.

What that program really gives is this: a part is counted from the digit's first example every time, so that devices
with a digit in common have examples in common, and what one tests on others train on; parts go to devices whatever
digit they were measured for; and a device loses up to two examples.  ``published`` has all that, draw by draw: 20
devices with two digits and seed 1 have 1,165 to 3,834 examples to train on, as the paper is quoted.  (Only one example
of each device, which that program labels as the wrong one of its digits, has the right label here.)  Otherwise the
parts are what they were meant to be, and no example has two owners.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets import mnist_source
from simulators.datasets._base import OnDemand, device_names
from simulators.datasets.fetching import cache_folder
from simulators.datasets.mnist_source import DIGITS, SIDE
from simulators.datasets.pool import Pool
from simulators.partition import Indices, Labels

INPUT_SHAPE = (SIDE * SIDE,)
CLASSES = tuple("0123456789")

_SOFTENED = (
    0.001  # added to deviations, as in the authors' program: pixels at the border are never or hardly ever inked
)


@dataclass(frozen=True)
class Dealing:
    """How the devices share the digits.

    Attributes:
        classes: digits of a device, 1 to 10.
        train_fraction: the part of each device's examples that trains.
        published: examples may have several owners, as behind the published numbers: see above.
    """

    classes: int = 2
    train_fraction: float = 0.75
    published: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= DIGITS or not 0 < self.train_fraction < 1:
            raise ConfigError(
                f"{self.classes} digits a device, and {self.train_fraction} of its examples to train on",
                where="data mnist",
                remedy=f"Give 1 to {DIGITS} digits and a fraction between 0 and 1",
            )


def pool() -> Pool:
    """All images, the training images first: inputs float32 (examples, 784), standardised, labels int64.

    Raises:
        DataError: the images cannot be fetched or read.
    """
    pixels, y = mnist_source.load(cache_folder())
    return Pool("mnist", _standardised(pixels), y, INPUT_SHAPE, CLASSES, "mlp")


def fleet(devices: int, seed: int, dealing: Dealing | None = None) -> Mapping[str, Examples]:
    """Every device's examples by its name: ``x`` float32 (examples, 784), standardised, ``y`` int64.

    Raises:
        ConfigError: there are too few examples for so many devices, or none.
        DataError: the images cannot be fetched or read.
    """
    chosen, everything = dealing or Dealing(), pool()
    y = everything.labels
    hands = deal(y, devices, seed, chosen)

    def make(number: int) -> Examples:
        rows = hands[number]
        x, border = everything.inputs(rows), max(int(chosen.train_fraction * len(rows)), 1)
        return Examples(x[:border], y[rows[:border]], x[border:], y[rows[border:]])

    return OnDemand(device_names(devices), make)


def _standardised(pixels: mnist_source.Bytes) -> Callable[[Indices], npt.NDArray[np.float32]]:
    """Some images' pixels, each pixel standardised over all images."""
    mean = pixels.mean(0, dtype=np.float64)
    squares = np.square(pixels, dtype=np.uint16).mean(0, dtype=np.float64)
    scale = np.sqrt(np.maximum(squares - mean**2, 0)) + _SOFTENED
    return lambda rows: ((pixels[rows] - mean) / scale).astype(np.float32)


def deal(y: Labels, devices: int, seed: int, dealing: Dealing) -> list[Indices]:
    """Which examples each device has, in random order.

    Args:
        y: the digits of all examples.
        devices: how many.
        seed: of the numbers of examples and of their order.
        dealing: how.

    Raises:
        ConfigError: a digit has too few examples for its devices, or the published way has no meaning for so many.
    """
    if devices < 1 or (dealing.published and devices % DIGITS):
        raise ConfigError(
            f"{devices} devices", where="data mnist", remedy="Ask for 1 or more, and as published for 10, 20, ..."
        )
    digits = [[(device + more) % DIGITS for more in range(dealing.classes)] for device in range(devices)]
    owners = Counter(digit for own in digits for digit in own)
    rng = np.random.RandomState(seed)  # the authors' generator
    places = {digit: np.flatnonzero(y == digit) for digit in sorted(owners)}
    sizes = {digit: parts(len(found), owners[digit], rng) for digit, found in places.items()}
    if dealing.published:
        return _published(places, sizes, digits, seed, first=[int(y[digit] == DIGITS - 1) for digit in range(DIGITS)])
    piles = {digit: iter(np.split(found, np.cumsum(sizes[digit])[:-1])) for digit, found in places.items()}
    pieces = [np.concatenate([next(piles[digit]) for digit in own]) for own in digits]
    return [
        generator(seed, "mnist", name).permutation(rows)
        for name, rows in zip(device_names(devices), pieces, strict=True)
    ]


def _published(
    places: Mapping[int, Indices],
    sizes: Mapping[int, list[int]],
    digits: Sequence[Sequence[int]],
    seed: int,
    first: list[int],
) -> list[Indices]:
    """What the authors' program deals out.

    Its counters of how far each digit is used up are truth values, and so stay at 1; at first (``first``) they are
    whether the image of that number is a 9.
    """
    in_turn = iter([size for turn in zip(*sizes.values(), strict=True) for size in turn])
    rng = random.Random(seed)
    dealt = []
    for own in digits:
        pieces = []
        for digit in own:
            pieces.append(places[digit][first[digit] : next(in_turn)])
            first[digit] = 1
        rows = np.concatenate(pieces).tolist()
        rng.shuffle(rows)
        dealt.append(np.array(rows))
    return dealt


def parts(total: int, count: int, rng: np.random.RandomState) -> list[int]:
    """Random numbers that sum to ``total``: each is up to half of what is left, and the last is the rest.

    Raises:
        ConfigError: what is left does not suffice.
    """
    found: list[int] = []
    for _ in range(count - 1):
        low, high = total // (count + 1), total // 2
        if not 1 <= low < high:
            raise ConfigError(
                f"a digit has too few examples for {count} devices",
                where="data mnist",
                remedy="Ask for fewer devices, or for fewer digits of each",
            )
        found.append(int(rng.randint(low, high)))
        total -= found[-1]
    return [*found, total]
