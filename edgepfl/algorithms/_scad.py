"""The smoothed SCAD penalty of FPFC, through its proximal operator.

Fan and Li 2001, "Variable selection via nonconcave penalized likelihood and its oracle properties", smoothed near 0 as
in Yu et al. 2022, "Clustered federated learning based on nonconvex pairwise fusion" (FPFC).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepfl.tree import Tensor


@dataclass(frozen=True)
class Scad:
    """``gt(t)``, the penalty of a distance ``t >= 0``, and the weight ``rho`` of its proximal operator.

    ::

        lam t^2 / (2 xi) + xi lam / 2                   t <= xi
        lam t                                           xi < t <= lam
        (a lam t - (t^2 + lam^2) / 2) / (a - 1)         lam < t <= a lam
        (a + 1) lam^2 / 2                               beyond: what is this far apart is not pulled together

    Attributes:
        lam: strength; 0 is no penalty.
        a: where the penalty becomes flat, in multiples of ``lam``; ``(a - 1) rho > 1``.
        xi: below this distance the penalty is quadratic; at most ``lam``.
        rho: of ``rho / 2 |theta - delta|^2``.
    """

    lam: float
    a: float
    xi: float
    rho: float

    def factor(self, norms: Tensor) -> Tensor:
        """``c(n)``, with which ``c(|delta|) delta = argmin_theta gt(|theta|) + rho/2 |theta - delta|^2``.

        Args:
            norms: ``|delta|``, any shape.

        Returns:
            as many, in 0 .. 1; continuous in ``norms``.
        """
        lam, a, xi, rho = self.lam, self.a, self.xi, self.rho
        c = norms.new_ones(norms.shape)
        if lam == 0:
            return c
        slope = (a - 1) * rho
        taper = (1 - a * lam / (slope * norms)).clamp(min=0) / (1 - 1 / slope)
        c = taper.where(norms <= a * lam, c)
        c = (1 - lam / (rho * norms)).where(norms <= lam + lam / rho, c)
        fused = norms.new_tensor(xi * rho / (lam + xi * rho))
        return fused.where(norms <= xi + lam / rho, c)
