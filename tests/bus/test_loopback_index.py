"""The loopback broker finds whom a message is for without asking everyone: as MQTT's rules say, and in their order."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from edgepfl.bus.loopback import LoopbackBroker, LoopbackBus

LEVELS = st.sampled_from(["a", "b", "$s"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map("/".join)
FILTERS = st.tuples(st.lists(st.sampled_from(["a", "b", "$s", "+"]), min_size=0, max_size=3), st.booleans()).map(
    lambda pair: "/".join([*pair[0], "#"] if pair[1] or not pair[0] else pair[0])
)


class _Ear(LoopbackBus):
    """Notes who is offered what, in order."""

    heard: list[tuple[str, str]]

    def offer(self, topic: str, payload: bytes) -> None:  # noqa: ARG002  only who matters
        self.heard.append((self.client_id, topic))


@given(
    filters=st.lists(st.lists(FILTERS, max_size=3), min_size=1, max_size=4),
    gone=st.sets(st.integers(0, 3)),
    dropped=st.sets(st.integers(0, 3)),
    topics=st.lists(TOPICS, min_size=1, max_size=4),
)
def test_each_bus_gets_what_its_filters_match_once_in_the_order_of_attachment(
    filters: list[list[str]], gone: set[int], dropped: set[int], topics: list[str]
) -> None:
    async def scenario() -> None:
        broker, heard = LoopbackBroker(), list[tuple[str, str]]()
        buses = [_Ear(broker, f"bus-{number}") for number in range(len(filters))]
        for number, bus in enumerate(buses):
            bus.heard = heard
            for each in filters[number][:1]:
                bus.subscribe(each)  # before it is attached
            await bus.start()
            for each in filters[number][1:]:
                bus.subscribe(each)
        wanted = {number: list(dict.fromkeys(each)) for number, each in enumerate(filters)}
        for number in gone & wanted.keys():
            await buses[number].stop()
            del wanted[number]
        for number in dropped & wanted.keys():
            for each in wanted[number][:1]:
                buses[number].unsubscribe(each)
            wanted[number] = wanted[number][1:]
        for topic in topics:
            broker.deliver(topic, b"")
        assert heard == [
            (f"bus-{number}", topic)
            for topic in topics
            for number, subscribed in wanted.items()
            if any(topic_matches_sub(each, topic) for each in subscribed)
        ]

    asyncio.run(scenario())
