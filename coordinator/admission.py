"""Which bundles a run may begin with."""

from __future__ import annotations

import numpy as np

from edgepfl.bundle import Bundle
from edgepfl.errors import RunError


def runnable(bundle: Bundle) -> Bundle:
    """A bundle that a run can begin with.

    Raises:
        RunError: it has no graphs, or starts from a model that is not finite.
    """
    if not bundle.graphs:
        raise RunError("it has no graphs, so no device could run it", where="bundle", remedy="Export it again")
    if not all(np.isfinite(tensor).all() for tensor in bundle.model.values()):
        raise RunError("its initial model is not finite", where="bundle", remedy="Export it again from a sound model")
    return bundle
