"""Which runs may be buffered: those to which late reports do no harm that a weight cannot mend.

What a device of a buffered run uploads was made from an older state than the one it is added to.  That is sound where
the server adds the mean of what devices changed, and does nothing else with it (Nguyen et al. 2022, algorithm 1).  With
the reports ``k`` in the buffer, their examples ``n_k``, staleness ``s_k`` and changes ``D_k`` the server adds::

    sum_k n_k w(s_k) D_k / sum_k n_k

which is the paper's ``(1/K) sum_k w(s_k) D_k`` where all have as many examples (or weights are uniform), and the
synchronous mean where nobody is late.  Dividing by ``sum_k n_k w(s_k)`` instead would undo the weights where all
reports are equally late.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

from coordinator import optimisers, updater
from coordinator.config import RunConfig
from coordinator.robust import Clip, rule_of
from coordinator.staleness import weighting_of
from edgepfl.algorithms import Algorithm
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Role


def check(algorithm: Algorithm, plan: Plan, config: RunConfig, hubs: Collection[str] = ()) -> None:
    """Refuse a buffered run that late reports would spoil, and words that name no weighting.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        config: its settings.
        hubs: the coordinator's.

    Raises:
        ConfigError: with the reason.
    """
    weighting_of(config.staleness)
    if not config.buffer:
        return
    if why := _against(algorithm, plan):
        raise ConfigError(
            f"{plan.algorithm} cannot be trained with a buffer: {why}",
            where="buffer",
            remedy="Leave --buffer out, or choose an algorithm whose server adds the mean change, such as fedavg",
        )
    rule = rule_of(config.robust)
    if rule is not None and not isinstance(rule, Clip):
        raise ConfigError(
            f"{config.robust} compares the uploads of one round with each other, and late ones start from other models",
            where="robust",
            remedy="Use clip:NORM, or leave --buffer out",
        )
    if hubs:
        raise ConfigError(
            f"{' and '.join(sorted(hubs))} sum up over their devices, and a sum cannot be weighted by how late each is",
            where="buffer",
            remedy="Set relay = true in the hubs' settings and leave them out of the coordinator's, or drop --buffer",
        )


def _against(algorithm: Algorithm, plan: Plan) -> str:
    """Why late reports would spoil it; empty if they do not."""
    kind = type(algorithm)
    if kind.local_steps is not Algorithm.local_steps or kind.round_hyper is not Algorithm.round_hyper:
        return "its coins are tossed for all devices of a round at once"
    found, why = optimisers.summands(algorithm, plan, functools.partial(updater.first_state, algorithm))
    if not found:
        return why
    others = sorted((plan.by_role(Role.UP).keys() | algorithm.rebuilt.keys()) - set(found))
    if others:
        return f"its server also reckons with {' and '.join(others)}, which is of no use once it is late"
    return ""
