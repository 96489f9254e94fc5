from __future__ import annotations

import pytest

from device_agent.hearing import _KEPT, SharedDecoder
from edgepfl import wire
from edgepfl.errors import WireError
from edgepfl.wire import Commit


def _bytes(number: int) -> bytes:
    return wire.encode(Commit("run-1", number, ("pi-1", "pi-2")))


def test_equal_bytes_are_decoded_once_and_give_what_the_wire_gives() -> None:
    decode = SharedDecoder()
    first = decode(_bytes(1), where="here")
    assert first == wire.decode(_bytes(1))
    assert decode(bytes(bytearray(_bytes(1))), where="there") is first  # equal, and other bytes in memory
    assert decode(_bytes(2), where="here") == Commit("run-1", 2, ("pi-1", "pi-2"))


def test_it_remembers_the_last_few_and_no_more() -> None:
    decode = SharedDecoder()
    first = decode(_bytes(0), where="here")
    for number in range(1, _KEPT):
        decode(_bytes(number), where="here")
        assert decode(_bytes(0), where="here") is first  # heard again, so it stays
    second = decode(_bytes(1), where="here")
    for number in range(100, 100 + _KEPT):
        decode(_bytes(number), where="here")
    assert decode(_bytes(1), where="here") is not second
    assert len(decode._known) == _KEPT


def test_what_is_no_message_is_refused_each_time() -> None:
    decode = SharedDecoder()
    for where in ("here", "there"):
        with pytest.raises(WireError) as caught:
            decode(b"\xc1", where=where)
        assert caught.value.where == where
