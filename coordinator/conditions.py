"""What a run asks of its devices, at the coordinator's end.

The coordinator never judges: a roll call tells the devices what the active run asks, and each says in its Hello what of
it is unmet, and which conditions it speaks of.  Whoever speaks of others has not heard yet, and is told alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from coordinator.devices import Fleet
from coordinator.reasons import names
from coordinator.seats import Phase
from coordinator.status import RunStatus
from edgepfl.eligibility import Conditions, digest
from edgepfl.wire import Hello, RollCall

UNASKED = "it has not said yet whether it meets the run's conditions"


def obstacle(hello: Hello, asked: Conditions | None) -> str:
    """Why a device may not take part just now, in its own words; empty if it may.

    A hub may: the devices with it get the conditions with their task, and decline by themselves.
    """
    if asked is None or hello.members:
        return ""
    if not has_judged(hello, asked):
        return UNASKED
    return ", ".join(hello.unmet or ())


def has_judged(hello: Hello, asked: Conditions | None) -> bool:
    """Whether a device knows what the active run asks; one that was away when the run began does not."""
    return asked is None or bool(hello.members) or hello.judged == digest(asked)


def is_to_ask(before: Fleet, hello: Hello, asked: Conditions | None) -> bool:
    """Whether a device that said Hello must be told what is asked, by the fleet before that.

    One that says the same again as it said when it was told is of another version, and would answer so for ever.
    """
    known = before.devices.get(hello.device)
    told = known is not None and known.present and known.hello == hello
    return not told and not has_judged(hello, asked)


def obstacles(fleet: Fleet, asked: Conditions | None) -> dict[str, str]:
    """Who is here and may not take part, and why; in the order of their names."""
    found = {name: obstacle(known.hello, asked) for name, known in sorted(fleet.devices.items()) if known.present}
    return {name: why for name, why in found.items() if why}


def with_unmet(status: RunStatus, fleet: Fleet, asked: Conditions | None) -> RunStatus:
    """The status with who cannot take part just now; while devices are selected, that is what it waits for."""
    unmet = obstacles(fleet, asked)
    waiting = status.waiting
    if unmet and status.phase == Phase.SELECTING:
        waiting += f"; not ready: {names([f'{device} ({why})' for device, why in unmet.items()])}"
    return msgspec.structs.replace(status, unmet=unmet, waiting=waiting)


def roll_call(asked: Conditions | None, draw: Callable[[int], int] = secrets.randbits) -> RollCall:
    """Asks for a Hello, and says what the active run asks; ``draw`` gives so many random bits."""
    return RollCall(draw(32), asked)
