"""An asyncio event loop with a virtual clock, and work that takes virtual time."""

from simulators.clock.loop import Standstill, VirtualLoop, run
from simulators.clock.work import Inline, PowerCut, Processor, ahead, spend

__all__ = ["Inline", "PowerCut", "Processor", "Standstill", "VirtualLoop", "ahead", "run", "spend"]
