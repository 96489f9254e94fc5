"""The members of a round that count without a report, and why: what the journal keeps of them with its commit."""

from __future__ import annotations

import msgspec

from coordinator.seats import Round, State


class Without(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who had the task of a committed round and has no report in it.

    Attributes:
        refused: by device, why its report or its upload was not used.
        failed: by device, what it said that went wrong.
        lost: devices that gave no sign of life.
        released: devices that were not waited for.
    """

    refused: dict[str, str] = {}
    failed: dict[str, str] = {}
    lost: tuple[str, ...] = ()
    released: tuple[str, ...] = ()


def without_of(r: Round) -> Without:
    """Who is missing from a round."""
    failures = {device: r.seats[device] for device in r.devices(State.FAILED)}
    return Without(
        refused={device: seat.why for device, seat in failures.items() if not seat.code},
        failed={device: seat.why for device, seat in failures.items() if seat.code},
        lost=r.devices(State.LOST),
        released=r.devices(State.RELEASED),
    )
