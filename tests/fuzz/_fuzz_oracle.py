"""What a parser of strangers' bytes must do, and how much it may take to do it.

A check reads one input.  It says whether the input was accepted, refuses it by the errors that the parser declares, and
raises :class:`Broken` where the parser does something that no input may bring about.  Anything else that it raises is a
fault as well.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from _fuzz_inputs import Maker

T = TypeVar("T")
Check: TypeAlias = Callable[[bytes], bool]


class Broken(Exception):
    """A parser accepted what it must not, or gave something that is not what it read."""


@dataclass(frozen=True)
class Bound:
    """What reading an input may take: ``base + factor * len(input)``.

    Attributes:
        base: bytes of memory.
        factor: bytes of memory for each byte of the input.
        steps: calls of functions, Python's or not.
        steps_per_byte: likewise, for each byte of the input.
    """

    base: int = 64 << 10
    factor: int = 64
    steps: int = 3000
    steps_per_byte: int = 8

    def memory(self, size: int) -> int:
        """The most bytes for an input of ``size`` bytes."""
        return self.base + self.factor * size

    def calls(self, size: int) -> int:
        """The most calls for an input of ``size`` bytes."""
        return self.steps + self.steps_per_byte * size


@dataclass(frozen=True)
class Target:
    """One parser.

    Attributes:
        name: of the target and of its folder in the corpus.
        make: draws inputs.
        check: reads one.
        bound: what that may take.
        share: of all inputs of a campaign, in parts.
    """

    name: str
    make: Maker
    check: Check
    bound: Bound = Bound()
    share: int = 10


@dataclass(frozen=True)
class Cost:
    """What reading one input took.

    Attributes:
        accepted: whether it was taken.
        memory: bytes, at the peak.
        calls: of functions.
    """

    accepted: bool
    memory: int
    calls: int


def back(
    decode: Callable[[bytes], T],
    encode: Callable[[T], bytes],
    refusals: type[Exception] | tuple[type[Exception], ...],
    same: Callable[[T, T], bool] = lambda one, other: one == other,
) -> Check:
    """A check that what is accepted, written and read again is the same.

    Args:
        decode: the parser.
        encode: its inverse.
        refusals: what it may raise.
        same: whether two values are equal.
    """

    def check(data: bytes) -> bool:
        try:
            value = decode(data)
        except refusals:
            return False
        again = encode(value)
        try:
            read = decode(again)
        except refusals as error:
            raise Broken(f"what it accepted cannot be written and read again ({error})") from error
        if not same(read, value):
            raise Broken("what it accepted is another value when it is written and read again")
        return True

    return check


def measured(target: Target, data: bytes) -> Cost:
    """What reading an input takes.

    Raises:
        Broken: more than the target's bound.
    """
    target.check(data)  # once without, for what is made at the first use
    tracemalloc.start()
    try:
        accepted = target.check(data)
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    cost = Cost(accepted, memory, _calls(target.check, data))
    if cost.memory > (most := target.bound.memory(len(data))):
        raise Broken(f"{cost.memory} bytes for an input of {len(data)}, at most {most} are allowed")
    if cost.calls > (most := target.bound.calls(len(data))):
        raise Broken(f"{cost.calls} calls for an input of {len(data)}, at most {most} are allowed")
    return cost


def _calls(check: Check, data: bytes) -> int:
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        check(data)
    finally:
        sys.setprofile(before)
    return count
