"""The emulated fleet: the agents of real boards, many in one process, over real MQTT or in virtual time.

:func:`emulate` carries a scenario out and gives its report; :class:`Emulation` is the same thing held open, for tests
that want to look and to interfere while it runs.
"""

from simulators.emulation.emulation import Emulation, Given, emulate
from simulators.emulation.report import EmulationReport, Told
from simulators.emulation.scenario import Scenario

__all__ = ["Emulation", "EmulationReport", "Given", "Scenario", "Told", "emulate"]
