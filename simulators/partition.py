"""Dealing labelled examples out to devices so that they differ: seeded label skew.

Both partitions give every example to exactly one device, and leave no device with fewer than :data:`LEAST` examples
of a class that it has at all, so that each class can be both trained and tested on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgepfl.errors import ConfigError
from edgepfl.seeds import generator

Indices = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Labels = npt.NDArray[np.integer[Any]]

LEAST = 4
"""Examples of a class on a device that has the class."""


def dirichlet(labels: Labels, devices: int, *, alpha: float, seed: int) -> list[Indices]:
    """Each class is shared out by a draw from a symmetric Dirichlet distribution.

    Yurochkin et al. 2019, "Bayesian nonparametric federated learning of neural networks" (arXiv 1905.12022), section 4;
    Li et al. 2022 (arXiv 2102.02079).  What Hsu et al. 2019 do is ``mixes`` of :mod:`simulators.partition_choice`.

    Args:
        labels: (examples,), any integers.
        devices: how many parts.
        alpha: above 0; the smaller, the fewer classes on each device.
        seed: the same seed gives the same parts.

    Returns:
        each device's indices into ``labels``, ascending.

    Raises:
        ConfigError: there are too few examples for so many devices, or ``alpha`` is not above 0.
    """
    if not alpha > 0:
        raise ConfigError(f"alpha is {alpha}", where="Dirichlet partition", remedy="Give a number above 0")
    totals = _totals(labels, devices)
    rng = generator(seed, "partition", "dirichlet", devices)
    counts = np.stack([apportion(rng.dirichlet(np.full(devices, alpha)), int(total)) for total in totals], axis=1)
    _gather_crumbs(counts)
    _feed_the_empty(counts)
    return deal_out(labels, counts, rng)


def by_classes(labels: Labels, devices: int, *, classes: int, seed: int) -> list[Indices]:
    """Each device gets ``classes`` classes; each class is shared equally among the devices that have it.

    McMahan et al. 2017 deal shards of sorted data to the same end; here the number of classes is exact.

    Args:
        labels: (examples,), any integers.
        devices: how many parts.
        classes: on each device.
        seed: the same seed gives the same parts.

    Returns:
        each device's indices into ``labels``, ascending.

    Raises:
        ConfigError: a class would belong to nobody, or to more devices than it has examples for.
    """
    totals = _totals(labels, devices)
    if not 1 <= classes <= len(totals) or devices * classes < len(totals):
        raise ConfigError(
            f"{devices} devices with {classes} classes each cannot hold {len(totals)} classes",
            where="partition by classes",
            remedy="Give more classes to each device, but no more than there are",
        )
    rng = generator(seed, "partition", "classes", devices, classes)
    held = np.zeros((devices, len(totals)), np.bool_)
    for device in range(devices):
        fewest = np.lexsort((rng.random(len(totals)), held.sum(axis=0)))[:classes]
        held[device, fewest] = True
    if (totals < LEAST * held.sum(axis=0)).any():
        raise _too_many(devices, len(labels))
    counts = np.stack([_equally(column, int(total)) for column, total in zip(held.T, totals, strict=True)], axis=1)
    return deal_out(labels, counts, rng)


def stratified(labels: Labels, *, train_fraction: float, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices to train on and to test on, with the same mix of labels on both sides, at least one of each.

    Of a label that has one example only, that trains.

    Args:
        labels: (examples,), any integers.
        train_fraction: between 0 and 1; of each label.
        rng: chooses which.

    Returns:
        two ascending arrays that hold every index once.
    """
    train: list[Indices] = []
    test: list[Indices] = []
    for label in np.unique(labels):
        mixed = rng.permutation(np.flatnonzero(labels == label))
        border = min(max(round(train_fraction * len(mixed)), 1), max(len(mixed) - 1, 1))
        train.append(mixed[:border])
        test.append(mixed[border:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def _totals(labels: Labels, devices: int) -> Counts:
    """Examples of each class; refuses what cannot be dealt."""
    _, totals = np.unique(labels, return_counts=True)
    # With 2 * LEAST examples for each device, some device always has a piece to spare: see _feed_the_empty.
    if devices < 1 or devices * 2 * LEAST > len(labels) or totals.min() < LEAST:
        raise _too_many(devices, len(labels))
    return totals.astype(np.int64)


def _too_many(devices: int, examples: int) -> ConfigError:
    return ConfigError(
        f"{examples} examples cannot be dealt to {devices} devices, at least {LEAST} of each of a device's classes",
        where="partition",
        remedy=f"Ask for 1 to {examples // (2 * LEAST)} devices, or for fewer classes on each",
    )


def apportion(shares: npt.NDArray[np.float64], total: int) -> Counts:
    """Whole numbers nearest to ``shares * total`` that sum to ``total`` (largest remainders)."""
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def _equally(held: npt.NDArray[np.bool_], total: int) -> Counts:
    """``total`` shared among the devices that hold the class, sizes at most one apart."""
    each, left = divmod(total, int(held.sum()))
    counts = np.where(held, each, 0)
    counts[np.flatnonzero(held)[:left]] += 1
    return counts


def _gather_crumbs(counts: Counts) -> None:
    """Pieces under LEAST go to the device that has most of their class."""
    for column in counts.T:
        crumbs = (column < LEAST) & (np.arange(len(column)) != column.argmax())
        column[column.argmax()] += column[crumbs].sum()
        column[crumbs] = 0


def _feed_the_empty(counts: Counts) -> None:
    """A device without examples gets half of the largest piece, or else a whole one from whoever has most pieces."""
    for device in np.flatnonzero(counts.sum(axis=1) == 0):
        giver, label = np.unravel_index(counts.argmax(), counts.shape)
        if counts[giver, label] >= 2 * LEAST:
            given = counts[giver, label] // 2
        else:
            giver = np.count_nonzero(counts, axis=1).argmax()
            label = np.where(counts[giver] > 0, counts[giver], counts.max() + 1).argmin()
            given = counts[giver, label]
        counts[giver, label] -= given
        counts[device, label] += given


def deal_out(labels: Labels, counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """``counts[device, class]`` examples to each device, which ones by chance."""
    hands: list[list[Indices]] = [[] for _ in counts]
    for column, label in zip(counts.T, np.unique(labels), strict=True):
        mixed = rng.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(hands, np.split(mixed, np.cumsum(column)[:-1]), strict=True):
            hand.append(piece)
    return [np.sort(np.concatenate(hand)) for hand in hands]
