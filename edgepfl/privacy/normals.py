"""Standard normals that nobody can foretell without a key: ChaCha20's stream through Box and Muller's transform.

The same key gives the same numbers, so noise that was drawn for a sum can be made again after a power cut, and a test
can fix it.  A key is for one sum: two sums with the same noise differ by what the noise should hide.

Uniform numbers have 53 bits, so the tails end at 8.57 standard deviations, beyond which there are 1e-17 of a normal's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 32
_BLOCK = 1 << 16  # pairs at a time: 1 MiB of stream


def normals(key: bytes, count: int) -> NDArray[np.float64]:
    """So many independent standard normals, ``(count,)``.

    Args:
        key: :data:`KEY_BYTES` secret bytes, for this use alone.
        count: how many.

    Raises:
        ValueError: the key has another length.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # noqa: PLC0415  few runs need it

    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, and {KEY_BYTES} are needed")
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    found = np.empty(count + count % 2)
    for start in range(0, len(found), 2 * _BLOCK):
        part = found[start : start + 2 * _BLOCK]
        words = np.frombuffer(stream.update(bytes(8 * len(part))), "<u8")
        part[:] = _transformed(words)
    return found[:count]


def _transformed(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Two independent standard normals for each two words (Box and Muller 1958)."""
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # above 0, at most 1
    first, second = uniform[0::2], uniform[1::2]
    radius = np.sqrt(-2 * np.log(first))
    angle = 2 * np.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
