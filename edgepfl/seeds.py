"""Randomness by name: every draw in a run follows from one seed and a path of names.

A device's minibatches of round 7 come from ``generator(seed, "minibatch", device, 7)``, whatever was drawn before and
in whatever order messages arrive.
"""

from __future__ import annotations

import hashlib

import numpy as np

SEED_BITS = 63  # fits a signed 64-bit integer, SQLite's widest


def derive(seed: int, *names: str | int) -> int:
    """The seed of a named stream: a 63-bit integer that depends on ``seed`` and every name.

    >>> derive(1, "minibatch", "pi-07", 3) == derive(1, "minibatch", "pi-07", 3)
    True
    >>> derive(1, "a", "bc") == derive(1, "ab", "c")
    False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *names):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> (64 - SEED_BITS)


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A counter-based generator (Philox) for the named stream."""
    return np.random.Generator(np.random.Philox(derive(seed, *names)))
