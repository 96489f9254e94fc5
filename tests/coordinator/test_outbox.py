"""Messages that the bus has no room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.outbox import Outbox
from edgepfl.topics import Address, ToDevice
from edgepfl.wire import Message, RollCall


class Bus:
    """Takes as many messages as it has room for."""

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.took: list[tuple[Address, Message]] = []

    def publish(self, address: Address, message: Message) -> bool:
        if len(self.took) >= self.room:
            return False
        self.took.append((address, message))
        return True


def to(device: int) -> Address:
    return ToDevice(f"pi-{device}", RollCall.KIND)


def test_what_fits_goes_at_once() -> None:
    bus = Bus(1)
    outbox = Outbox(bus.publish)
    outbox.send(to(1), RollCall(1))
    assert bus.took == [(to(1), RollCall(1))]
    assert not outbox.waiting


def test_nothing_overtakes_what_waits() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish)
    outbox.send(to(1), RollCall(1))
    bus.room = 1
    outbox.send(to(2), RollCall(2))
    assert bus.took == []
    outbox.pump()
    assert bus.took == [(to(1), RollCall(1))]
    assert outbox.waiting == 1


def test_a_lost_connection_forgets_what_waits() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish)
    outbox.send(to(1), RollCall(1))
    outbox.forget()
    bus.room = 9
    outbox.pump()
    assert bus.took == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_every_device_hears_the_newest_word_and_none_twice(steps: list[tuple[int, int]]) -> None:
    bus = Bus()
    outbox = Outbox(bus.publish)
    newest: dict[Address, Message] = {}
    for number, (device, room) in enumerate(steps):
        outbox.send(to(device), RollCall(number))
        newest[to(device)] = RollCall(number)
        bus.room += room
        outbox.pump()
    bus.room = len(steps)
    outbox.pump()
    assert not outbox.waiting
    assert {address: message for address, message in bus.took} == newest  # noqa: C416  the last of each
    assert len(set(bus.took)) == len(bus.took)
