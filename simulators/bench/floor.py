"""The least time that the arithmetic of a step could take on this machine."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from simulators.bench.job import Job
from simulators.bench.ordinary import eager
from simulators.bench.timing import measure

_SIZE = 768  # of the square matrices: they fit into the second-level cache no more, and the product is still quick


def operations(job: Job) -> int:
    """Floating-point operations of the step's matrix products and convolutions, forward and backward."""
    counter = FlopCounterMode(display=False)
    step = eager(job)
    with counter:
        step()
    return int(counter.get_total_flops())


def peak(threads: int, rounds: int) -> float:
    """The machine's operations a second in the product of two matrices, the better of torch's and NumPy's."""
    torch.set_num_threads(threads)
    left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    steps = {"torch": lambda: left @ right}
    if threads == 1:  # NumPy's threads cannot be set from here; its products use one or all
        steps["numpy"] = lambda: torch.from_numpy(left.numpy() @ right.numpy())
    least = min(time.best(threads) for time in measure(steps, rounds).values())
    return 2 * _SIZE**3 / (least * 1e-6)
