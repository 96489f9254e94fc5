"""Which codecs an algorithm can have its uploads encoded with."""

from __future__ import annotations

from edgepfl.algorithms import Algorithm
from edgepfl.coding import Coding
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan


def check(algorithm: Algorithm, plan: Plan, words: str) -> Coding:
    """The codec of a run.

    Args:
        algorithm: the run's.
        plan: of its bundle.
        words: the codec's; empty for none.

    Raises:
        ConfigError: there is no such codec, or it would break what the server knows of the devices' own variables.
    """
    coding = Coding(words, plan)
    if coding.codec.biased and (amends := algorithm.amended):
        kept = " and ".join(sorted({each.keep for each in amends}))
        raise ConfigError(
            f"{words} leaves numbers out of what the server computes each device's {kept} from: {plan.algorithm} would "
            "make up for them on its own, and error feedback once more",
            where="codec",
            remedy="Choose one that rounds, such as int8 or float16, or sparse, which loses nothing",
        )
    return coding
