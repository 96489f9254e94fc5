"""Known answers of the primitives, and of how keys are derived from them."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from _exchange import seeded

from edgepfl.errors import CodecError
from edgepfl.secagg.masks import Channel, Mask, context, pairwise, selfish
from edgepfl.secagg.messages import Keys
from edgepfl.secagg.primitives import KeyPair, add_stream, expand, seal, unseal

BOB = KeyPair(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
ALICE = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 6.1."""
    assert BOB.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert BOB.agree(ALICE).hex() == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


@pytest.mark.parametrize("public", [bytes(32), bytes([1, *bytes(31)]), b"short"])
def test_a_public_key_of_small_order_is_refused(public: bytes) -> None:
    with pytest.raises(CodecError, match="cannot be used"):
        BOB.agree(public)


def test_the_stream_is_chacha20_of_rfc_8439() -> None:
    """Appendix A.1, test vectors 1 and 2: the key and the nonce are 0, the counter 0 and 1."""
    first = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    second = (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    for dtype in ("<u4", "<u8"):
        total = np.zeros(128 // np.dtype(dtype).itemsize, dtype)
        add_stream(total, bytes(32), 1)
        assert total.tobytes().hex() == first + second
        add_stream(total, bytes(32), -1)
        assert not total.any()


@pytest.mark.parametrize("size", [1, (1 << 15) - 1, 1 << 15, (1 << 16) + 3])
def test_a_long_stream_is_one_stream(size: int) -> None:
    """It is made in parts."""
    from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415  an oracle, only here
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20  # noqa: PLC0415  likewise

    total = np.zeros(size, "<u8")
    add_stream(total, b"k" * 32, 1)
    whole = Cipher(ChaCha20(b"k" * 32, bytes(16)), None).encryptor().update(bytes(8 * size))
    assert total.tobytes() == whole


def test_keys_are_expanded_by_hkdf_of_rfc_5869() -> None:
    """By its two equations, one block of output."""
    extracted = hmac.digest(b"edgepfl secagg 1", b"secret", hashlib.sha256)
    info = b"\x04\x00\x00\x00mask" + b"\x02\x00\x00\x00ab"
    assert expand(b"secret", b"mask", b"ab") == hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    assert expand(b"secret", b"a", b"bc") != expand(b"secret", b"ab", b"c")


def test_two_devices_masks_cancel_and_depend_on_all_that_they_are_about() -> None:
    draw, about = seeded(1), context("run-1", 2, 0)
    a, b = KeyPair(draw(32)), KeyPair(draw(32))
    mine, theirs = pairwise(a, "ant", "bee", b.public, about), pairwise(b, "bee", "ant", a.public, about)
    assert (mine.key, mine.sign, theirs.sign) == (theirs.key, 1, -1)
    others = [
        pairwise(a, "ant", "bee", b.public, context("run-1", 2, 1)),
        pairwise(a, "ant", "bee", b.public, context("run-1", 3, 0)),
        pairwise(a, "ant", "cat", b.public, about),
        pairwise(a, "ant", "bee", KeyPair(draw(32)).public, about),
        selfish(a.agree(b.public), "ant", about),
    ]
    assert len({mine.key, *(other.key for other in others)}) == 6
    assert mine.key.hex() not in repr(mine) + repr(Mask(mine.key, 1)) + repr(a)
    assert a.private.hex() not in repr(a)


def test_a_sealed_message_opens_for_its_receiver_alone() -> None:
    draw, about = seeded(2), context("run-1", 2, 0)
    a, b, c = (KeyPair(draw(32)) for _ in range(3))
    keys = {name: Keys(bytes(32), key.public) for name, key in (("a", a), ("b", b), ("c", c))}
    sealed = Channel.between(a, "a", "b", keys["b"], about).seal(b"1" * 32, b"2" * 32)
    assert len(sealed) == 80
    assert Channel.between(b, "a", "b", keys["a"], about).unseal(sealed) == (b"1" * 32, b"2" * 32)
    for channel in (
        Channel.between(b, "b", "a", keys["a"], about),  # the other direction
        Channel.between(c, "a", "b", keys["a"], about),  # another receiver
        Channel.between(b, "a", "b", keys["c"], about),  # another sender
        Channel.between(b, "a", "b", keys["a"], context("run-1", 2, 1)),  # another attempt
    ):
        with pytest.raises(CodecError, match="does not open"):
            channel.unseal(sealed)
    with pytest.raises(CodecError, match="does not open"):
        unseal(bytes(32), seal(bytes(32), b"x", b"about"), b"another")
