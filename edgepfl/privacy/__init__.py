"""Differential privacy of devices: what both sides must know of it, and the arithmetic that both do.

A device's *contribution* to a round is all its UP slots together, one vector.  It is clipped to an L2 norm, and noise
is added to the sum over the cohort (central: by the coordinator) or to each contribution (local: by the device).  KEEP
slots never leave the device and stay exact.
"""

from edgepfl.privacy.clipping import clipped, norm_of
from edgepfl.privacy.noise import Gaussian, contribution, noised
from edgepfl.privacy.normals import KEY_BYTES, normals
from edgepfl.privacy.terms import Terms

__all__ = ["KEY_BYTES", "Gaussian", "Terms", "clipped", "contribution", "noised", "norm_of", "normals"]
