"""Hyperparameters of each algorithm on the data sets that come along, so that a comparison is a fair one.

Chosen by us, from a few candidates each, by one run of 30 rounds with a seed that no table has; the candidates are
step sizes and the one or two weights that a method lives by.  What is not named keeps its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgepfl.algorithms import Setting

Settings = Mapping[str, Mapping[str, Setting]]
"""Algorithm to the hyperparameters that differ from the demo's."""

WATCH: Settings = MappingProxyType(
    {
        "ditto": {"lam": 0.1},
        "fedamp": {"sigma": 100.0, "alpha": 4.0},
        "fedcr": {"clip": 10.0},
        "feddc": {"lr": 0.05},  # 0.1 diverges, as SCAFFOLD's does: the variates are divided by it
        "feddr": {"eta": 1.0, "alpha": 1.0},
        "feddyn": {"mu": 0.1},
        "fedem": {"lr": 0.2},  # a gradient is shared by three components
        "fedsplit": {"s": 20.0},
        "l2sgd": {"lr": 0.08, "lam": 0.1, "p": 0.1},  # ten local steps in the mean, as the others
        "perfedavg": {"alpha": 0.05, "beta": 0.1},
        "pfedbred": {"lr": 0.05, "inner_lr": 0.1, "lam": 5.0, "eta": 0.01, "eta_a": 0.01},
        "pfedmac": {"lr": 10.0, "inner_lr": 0.1, "mu": 0.02, "gamma": 0.001},
        "pfedme": {"lr": 0.1, "inner_lr": 0.1, "lam": 5.0},
        "proxskip": {"lr": 0.03, "p": 0.1},  # likewise; with 0.1 it diverged on one seed of three
        "scaffold": {"lr": 0.05},
    }
)
"""On the smartwatch recordings, 20 devices, minibatches of 16, 10 steps a round."""

TUNED: Mapping[str, Settings] = MappingProxyType({"watch": WATCH})
"""By data set."""
