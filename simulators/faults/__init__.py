"""A network between clients and a broker that delays, cuts, reorders, repeats, corrupts and falls silent on purpose.

::

    async with FaultProxy(broker.url, Faults(cut=(0.3, 1.2)), seed=7) as proxy:
        ...  # clients connect to proxy.url
        assert proxy.tally.cuts > 0, proxy
"""

from simulators.faults.proxy import FaultProxy
from simulators.faults.settings import CALM, Faults, Way, both
from simulators.faults.tally import Tally

__all__ = ["CALM", "FaultProxy", "Faults", "Tally", "Way", "both"]
