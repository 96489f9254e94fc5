"""An emulation that is ended from outside ends in order."""

from __future__ import annotations

import asyncio
import signal

import pytest

from simulators.emulation.stopping import stopped_in_order


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_is_an_interrupt_and_what_was_begun_is_ended(interrupt: signal.Handlers) -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # ending takes the event loop
            told.append("ended")

    before = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), stopped_in_order():
            asyncio.run(work())
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert told == ["ended"]
    assert signal.getsignal(signal.SIGTERM) == before[0]
