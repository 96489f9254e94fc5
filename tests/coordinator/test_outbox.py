"""Messages that the bus has no room for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.outbox import Outbox
from edgepfl.topics import Address, ToAll, ToDevice
from edgepfl.wire import BlobRef, Member, Message, RollCall, Task


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


def task(number: int, *devices: str) -> Task:
    """Of a round, for some devices."""
    blob, cohort = BlobRef("0" * 64, 1, b"x"), tuple(Member(device, -1) for device in devices)
    return Task(
        run="run",
        round=number,
        attempt=0,
        cohort=cohort,
        bundle=blob,
        download=blob,
        hyper={},
        steps=10,
        seed=0,
        evaluate=False,
        tune_steps=0,
        final=False,
        deadline=60.0,
        heartbeat=1.0,
    )


ALL = ToAll(Task.KIND)


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


def test_a_task_for_some_does_not_replace_the_task_of_others() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish)
    for each in (task(1, "ant"), task(1, "bee", "cat"), task(1, "ant"), task(2, "cat", "dog")):
        outbox.send(ALL, each)
    outbox.send(ToAll(RollCall.KIND), RollCall(1))
    assert outbox.waiting == 4
    bus.room = 9
    outbox.pump()
    told = [message for _, message in bus.took]
    assert told == [task(1, "bee"), task(1, "ant"), task(2, "cat", "dog"), RollCall(1)]
    assert not outbox.waiting


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.integers(0, 2))))
def test_every_member_hears_its_newest_task_last_and_no_more_waits_than_there_are_members(
    steps: list[tuple[set[str], int]],
) -> None:
    bus = Bus()
    outbox = Outbox(bus.publish)
    newest: dict[str, int] = {}
    for number, (devices, room) in enumerate(steps):
        outbox.send(ALL, task(number, *sorted(devices)))
        newest |= dict.fromkeys(devices, number)
        assert outbox.waiting <= 4
        assert len(outbox._newest) <= 4
        bus.room += room
        outbox.pump()
    bus.room = len(bus.took) + 4
    outbox.pump()
    assert not outbox.waiting
    assert not outbox._newest
    heard: dict[str, int] = {}
    for _, message in bus.took:
        assert isinstance(message, Task)
        heard |= {member.device: message.round for member in message.cohort}
    assert heard == newest


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
