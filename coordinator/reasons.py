"""What a round waits for, in words that a person can act on."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.seats import Phase, Round, State

_NAMED = 3  # devices in a sentence


def waiting(r: Round) -> str:
    """What the round waits for, for people."""
    reported = len(r.devices(State.REPORTED))
    match r.phase:
        case Phase.SELECTING:
            return "nobody is at work, and no device is here" if r.policy.buffer else _selecting(r)
        case Phase.REPORTING:
            return buffering(r) if r.policy.buffer else reporting(r)
        case Phase.REDUCING:
            return f"folding {reported} uploads"
        case Phase.COMMITTED:
            return f"committed with {reported} reports"
        case Phase.ABANDONED:
            return f"abandoned: {r.why}"
        case Phase.HALTED:
            return f"halted: {r.why}"
        case Phase.STOPPED:
            return "stopped by a person"


def reporting(r: Round) -> str:
    """Who has reported, and for whom a round that reports waits."""
    reported, working, held = r.devices(State.REPORTED), r.devices(State.WORKING), r.devices(State.WAITING)
    text = f"{len(reported)} of {min(len(r.seats), r.policy.goal)} reported"
    if working:
        silent = [device for device in working if r.seats[device].nudged]
        text += f", waiting for {names(working)}"
        text += f" (no sign of life from {names(silent)})" if silent else ""
    if held:
        text += f"; {len(held)} more get the task once it works there"
    gone = [f"{device}: {r.seats[device].why}" for device in r.devices(State.LOST, State.FAILED)]
    return text + (f"; without {names(gone)}" if gone else "")


def buffering(r: Round) -> str:
    """How full the buffer of a buffered round is, and who is at work, the longest first."""
    reported, working = r.devices(State.REPORTED), r.devices(State.WORKING)
    text = f"{len(reported)} of {r.policy.buffer} reports are in the buffer, {len(working)} of {r.policy.goal} at work"
    since = sorted((task[0], device) for device in working if (task := r.seats[device].task) is not None)
    text += f" ({names([f'{device} since round {number}' for number, device in since])})" if since else ""
    silent = [device for device in working if r.seats[device].nudged]
    text += f", no sign of life from {names(silent)}" if silent else ""
    gone = [f"{device}: {r.seats[device].why}" for device in r.devices(State.LOST, State.FAILED)]
    return text + (f"; without {names(gone)}" if gone else "")


def _selecting(r: Round) -> str:
    here = len(r.able)
    missing = r.policy.minimum - here
    need = f"{missing} more needed" if missing > 0 else f"waiting up to {r.policy.gather:g} s for the rest"
    out = sorted(r.present - r.able)
    return f"{here} of {r.policy.selected} devices are here, {need}" + (f"; without {names(out)}" if out else "")


def names(devices: Sequence[str]) -> str:
    """Some of them by name, and how many more there are."""
    rest = len(devices) - _NAMED
    return ", ".join(devices[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
