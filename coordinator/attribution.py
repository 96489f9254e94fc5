"""Whose message it is: nobody speaks for another device, and no device for a server."""

from __future__ import annotations

from edgepfl import wire
from edgepfl.errors import WireError
from edgepfl.wire import Message

_SERVERS_OWN = (
    wire.Task,
    wire.Commit,
    wire.Cancel,
    wire.RollCall,
    wire.Refused,
    wire.Order,
    wire.Done,
    wire.Here,
)  # what no device says


def attributed(device: str, message: Message) -> Message:
    """The message, if it is one that the device under whose topic it came may send.

    Raises:
        WireError: it says that it is from another, or only a server says such a thing.
    """
    claimed = getattr(message, "device", device)
    if claimed != device:
        raise WireError(f"it says it is from {claimed}", where=f"a message of {device}", reason="other name")
    if isinstance(message, _SERVERS_OWN):
        raise WireError(f"no device sends a {message.KIND}", where=f"a message of {device}", reason="wrong kind")
    return message
