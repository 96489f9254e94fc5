"""Synthetic(alpha, beta): every device has a classifier and inputs of its own, more or less unlike the others'.

Li et al. 2020, "Federated optimization in heterogeneous networks" (FedProx, arXiv 1812.06127), section 5.1, and the
authors' program (litian96/FedProx, ``data/synthetic_1_1/generate_synthetic.py``).  For device k, with
``u_k ~ N(0, alpha)`` and ``B_k ~ N(0, beta)``::

    W_k, b_k ~ N(u_k, 1)                    (60, 10) and (10,)
    v_k ~ N(B_k, 1)                         (60,)
    x ~ N(v_k, diag(j ** -1.2))             j = 1 ... 60
    y = argmax(softmax(x W_k + b_k))

``alpha`` and ``beta`` are standard deviations, as in that program and all that follow it; the paper writes variances,
which is the same for its 0 and 1.  A device has ``lognormal(4, 2) + 50`` examples, of which 9 of 10 train.  The iid
variant has one classifier, and inputs of mean 0, for all devices (``data/synthetic_iid/generate_iid.py``).

``u_k`` adds the same ``u_k (1 + sum x)`` to the logits of all classes, so that ``alpha`` changes no label: what differs
between the devices' classifiers are the ``N(0, 1)`` of their weights, whatever alpha is.  Only ``beta``, the distance
between their inputs, makes these data more or less alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets._base import FleetData, OnDemand, device_names

FEATURES, CLASSES = 60, 10
EXPONENT = -1.2  # of the inputs' variances
FEWEST = 50


@dataclass(frozen=True)
class Synthetic:
    """How unlike each other the devices are.

    Attributes:
        alpha: how much their classifiers' common means differ, which changes no label: see above.
        beta: how much their inputs do.
        iid: one classifier and one distribution of inputs for all; alpha and beta are not used.
        most: examples of a device are cut off here; 0: nowhere, as published, where one device in a thousand has more
            than 26,000.
        train_fraction: the part of each device's examples that trains.
    """

    alpha: float = 1.0
    beta: float = 1.0
    iid: bool = False
    most: int = 0
    train_fraction: float = 0.9

    def __post_init__(self) -> None:
        spread = 0 <= self.alpha < np.inf and 0 <= self.beta < np.inf
        if not (spread and 0 < self.train_fraction < 1 and (self.most == 0 or self.most > 1)):
            raise ConfigError(
                f"alpha {self.alpha}, beta {self.beta}, at most {self.most} examples, {self.train_fraction} of them "
                "to train on",
                where="data synthetic",
                remedy="Give alpha and beta of at least 0, two examples or more and a fraction between 0 and 1",
            )


def fleet(devices: int, seed: int, chosen: Synthetic) -> FleetData:
    """A fleet of any size; a device is the same in each, and is drawn when it is asked for.

    Raises:
        ConfigError: there is no device.
    """
    names = device_names(devices)
    made = OnDemand(names, lambda number: examples(number, seed, chosen))
    return FleetData("synthetic", made, (FEATURES,), tuple(f"class {label}" for label in range(CLASSES)), "mlp")


def examples(number: int, seed: int, chosen: Synthetic) -> Examples:
    """Device ``number``'s, counted from 0: ``x`` float32 (examples, 60), ``y`` int64 in 0 .. 9."""
    rng = generator(seed, "synthetic", number)
    count = int(rng.lognormal(4, 2)) + FEWEST
    count = min(count, chosen.most) if chosen.most else count
    u, centre = rng.normal(0, chosen.alpha), rng.normal(0, chosen.beta)
    v = np.zeros(FEATURES) if chosen.iid else rng.normal(centre, 1, FEATURES)
    shared = generator(seed, "synthetic", "all") if chosen.iid else rng
    middle = 0.0 if chosen.iid else u
    weight, bias = shared.normal(middle, 1, (FEATURES, CLASSES)), shared.normal(middle, 1, CLASSES)
    deviation = np.arange(1, FEATURES + 1) ** (EXPONENT / 2)
    x = v + deviation * rng.standard_normal((count, FEATURES))
    y = (x @ weight + bias).argmax(1)  # softmax is monotone
    border = min(max(int(chosen.train_fraction * count), 1), count - 1)
    x = x.astype(np.float32)
    return Examples(x[:border], y[:border], x[border:], y[border:])
