"""Vectorised mathematics: whole cohorts in one ``torch.func.vmap`` call, by the files that agents' graphs are made of.

No bus, no storage of a device, no runtime: the device functions of :mod:`edgepfl.algorithms` run on tensors whose first
axis is the devices of a cohort, and the coordinator's own reduction and updater fold what they give.  The numbers are
those of real agents to within 1e-5 of the greatest element, with the same minibatches and the same noise.

>>> from simulators.vmapped import OnDemand, Vectorised
"""

from simulators.datasets import OnDemand
from simulators.vmapped.evaluation import Evaluated
from simulators.vmapped.vectorised import Round, Vectorised

__all__ = ["Evaluated", "OnDemand", "Round", "Vectorised"]
