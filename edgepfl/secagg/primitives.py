"""Keys, streams and sealed messages, all of them by ``cryptography``.

X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869), ChaCha20 (RFC 8439, section 2.4) and ChaCha20-Poly1305 (section 2.8).
ChaCha20 rather than AES, because a Raspberry Pi up to the 4 has no AES instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgepfl.errors import CodecError
from edgepfl.secagg.fixed import Words

SECRET = 32
"""Bytes of a private key, a public key, a seed and a secret's share."""
_NONCE = bytes(12)  # each key seals one message
_START = bytes(16)  # the counter and the nonce of a stream, of which each key has one
_BLOCK = 1 << 18  # bytes of a stream that are made at a time: they stay in the cache


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key.

    Attributes:
        private: 32 secret bytes.
    """

    private: bytes = field(repr=False)

    @cached_property
    def public(self) -> bytes:
        """Its public half, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def agree(self, other: bytes) -> bytes:
        """The secret that only the owners of the two keys can compute, 32 bytes.

        Raises:
            CodecError: the other key is none.
        """
        try:
            public = X25519PublicKey.from_public_bytes(other)
            return X25519PrivateKey.from_private_bytes(self.private).exchange(public)
        except ValueError as error:  # of another length, or of small order
            raise CodecError("a public key that cannot be used", where="secagg") from error


def expand(secret: bytes, *words: bytes) -> bytes:
    """A key of 32 bytes for one purpose, which the words name.

    Args:
        secret: of high entropy.
        words: each goes in with its length, so that no two lists of words are one.
    """
    info = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    return HKDF(SHA256(), SECRET, salt=b"edgepfl secagg 1", info=info).derive(secret)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """A message that only whoever has the key can read or make; a key is for one message alone."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, message, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """What :func:`seal` was given.

    Raises:
        CodecError: it was not made with this key, or about something else.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, about)
    except InvalidTag as error:
        raise CodecError("a sealed message that this key does not open", where="secagg") from error


def add_stream(total: Words, key: bytes, sign: int) -> None:
    """Add the numbers of a key's stream to a vector, or subtract them, in place and modulo its size.

    Args:
        total: uint32 or uint64, little-endian.
        key: 32 bytes.
        sign: 1 or -1.
    """
    for part, numbers in _stream(total, key):
        if sign > 0:
            np.add(part, numbers, out=part)
        else:
            np.subtract(part, numbers, out=part)


def _stream(total: Words, key: bytes) -> Iterator[tuple[Words, Words]]:
    """Parts of a vector, and the numbers of the stream for each."""
    encryptor = Cipher(ChaCha20(key, _START), mode=None).encryptor()
    zeros, room = bytes(_BLOCK), bytearray(_BLOCK)
    count = _BLOCK // total.itemsize
    for start in range(0, len(total), count):
        part = total[start : start + count]
        encryptor.update_into(memoryview(zeros)[: part.nbytes], room)
        yield part, np.frombuffer(room, total.dtype, len(part))
