"""Who takes part: a choice that follows from the run's seed, not from who came first."""

from __future__ import annotations

from edgepfl.seeds import derive


def choose(devices: tuple[str, ...], count: int, seed: int, number: int, attempt: int = 0) -> tuple[str, ...]:
    """``count`` of the devices, uniformly without replacement, in the order of their names.

    Every device draws a number that depends on the seed, the round, the attempt and its name, and the smallest win: a
    device that is absent changes nobody else's draw, and a new attempt draws anew.

    Args:
        devices: who could take part.
        count: how many to choose.
        seed: the run's.
        number: the round's.
        attempt: at the round.
    """
    drawn = sorted(devices, key=lambda device: (derive(seed, "cohort", number, attempt, device), device))
    return tuple(sorted(drawn[:count]))
