"""Devices that are mixtures: each one's labels come from a few classifiers that all share, in proportions of its own.

Marfoq et al. 2021, "Federated multi-task learning under a mixture of distributions" (FedEM, arXiv 2108.10252), and the
sizes and noise of the authors' program (omarfoq/FedEM, ``data/synthetic/generate_data.py``).  For components m and
device t::

    theta_m ~ U[-1, 1]^d                    pi_t ~ Dirichlet(alpha)
    x ~ U[-1, 1]^d                          z ~ Categorical(pi_t)
    y = round(sigmoid(x . theta_z + noise N(0, level^2)))

A device has ``min(lognormal(4, 2) + 50, 1000)`` examples to train on, and further ones to test on.

That program's counter of finished examples never moves: each component's labels overwrite the first rows of the one
before, and rows past the largest component are labelled 0.  So its devices are no mixtures; here they are, as in the
paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_agent.data import Examples
from edgepfl.errors import ConfigError
from edgepfl.seeds import generator
from simulators.datasets._base import FleetData, OnDemand, device_names

FEWEST, MOST = 50, 1000


@dataclass(frozen=True)
class Mixture:
    """What the devices are mixtures of.

    Attributes:
        components: classifiers that all devices share.
        alpha: of the Dirichlet distribution of a device's proportions; the smaller, the fewer classifiers on each.
        dimension: of an input.
        noise: standard deviation of the logit's noise.
        tests: examples that a device tests on; the authors have 5,000.
    """

    components: int = 3
    alpha: float = 0.4
    dimension: int = 150
    noise: float = 0.1
    tests: int = 500

    def __post_init__(self) -> None:
        whole = min(self.components, self.dimension, self.tests) >= 1
        if not (whole and 0 < self.alpha < np.inf and 0 <= self.noise < np.inf):
            raise ConfigError(
                f"{self.components} components, alpha {self.alpha}, dimension {self.dimension}, noise {self.noise}, "
                f"{self.tests} examples to test on",
                where="data mixture",
                remedy="Give numbers of at least 1, an alpha above 0 and no negative noise",
            )


def fleet(devices: int, seed: int, chosen: Mixture) -> FleetData:
    """A fleet of any size; a device is the same in each, and is drawn when it is asked for.

    Raises:
        ConfigError: there is no device.
    """
    made = OnDemand(device_names(devices), lambda number: examples(number, seed, chosen))
    return FleetData("mixture", made, (chosen.dimension,), ("0", "1"), "mlp")


def components(seed: int, chosen: Mixture) -> npt.NDArray[np.float64]:
    """``theta`` (components, dimension), the same for all devices."""
    return generator(seed, "mixture", "components").uniform(-1, 1, (chosen.components, chosen.dimension))


def proportions(number: int, seed: int, chosen: Mixture) -> npt.NDArray[np.float64]:
    """``pi`` (components,) of a device, counted from 0."""
    return generator(seed, "mixture", "proportions", number).dirichlet(np.full(chosen.components, chosen.alpha))


def examples(number: int, seed: int, chosen: Mixture) -> Examples:
    """Device ``number``'s, counted from 0: ``x`` float32 (examples, dimension), ``y`` int64, 0 or 1."""
    rng = generator(seed, "mixture", number)
    border = min(int(rng.lognormal(4, 2)) + FEWEST, MOST)
    count = border + chosen.tests
    x = rng.uniform(-1, 1, (count, chosen.dimension))
    z = rng.choice(chosen.components, count, p=proportions(number, seed, chosen))
    theta = components(seed, chosen)
    logits = np.einsum("nd,nd->n", x, theta[z]) + rng.normal(0, chosen.noise, count)
    y = (logits > 0).astype(np.int64)  # where the sigmoid is above a half
    x = x.astype(np.float32)
    return Examples(x[:border], y[:border], x[border:], y[border:])
