"""A codec by its words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NoReturn

from edgepfl.errors import ConfigError

_REMEDY = (
    "Join at most one of topk:FRACTION, threshold:MAGNITUDE and sparse, one of float16, bfloat16, int8 and int4, "
    "and zlib with +, such as int8 or topk:0.05+int8+zlib"
)
WORDS_LIMIT = 64  # characters


class Numbers(StrEnum):
    """In what form numbers cross."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"  # a scale for each tensor, stochastic rounding
    INT4 = "int4"  # likewise


class Choice(StrEnum):
    """Which numbers cross."""

    ALL = "all"
    SPARSE = "sparse"  # all but zeros
    TOPK = "topk"  # the greatest, a fraction of all
    THRESHOLD = "threshold"  # those of a magnitude at least


@dataclass(frozen=True)
class Codec:
    """What is done to an upload.

    Attributes:
        choice: which numbers cross.
        amount: topk's fraction of all numbers, between 0 and 1, or threshold's magnitude, above 0.
        numbers: in what form they cross.
        packed: whether zlib packs the result.
    """

    choice: Choice = Choice.ALL
    amount: float = 0.0
    numbers: Numbers = Numbers.FLOAT32
    packed: bool = False

    @property
    def lossless(self) -> bool:
        """Whether the receiver gets exactly what was sent, but for the sign of zeros."""
        return not self.biased and self.numbers is Numbers.FLOAT32

    @property
    def biased(self) -> bool:
        """Whether it leaves numbers out that are not zero, so that the device must remember what it still owes."""
        return self.choice in {Choice.TOPK, Choice.THRESHOLD}


def codec_of(words: str) -> Codec:
    """The codec that a run names; no words name the one that changes nothing.

    Raises:
        ConfigError: there is no such codec.
    """
    if len(words) > WORDS_LIMIT:
        raise ConfigError(f"{len(words)} characters are no codec", where="codec", remedy=_REMEDY)
    found, said = Codec(), set()
    for word in words.split("+") if words else ():
        name, colon, amount = word.partition(":")
        part, found = _with(found, word, name, _amount(word, amount) if colon else None)
        if part in said:
            _refuse(words, f"{word!r} is a second {part}")
        said.add(part)
    return found


def _with(codec: Codec, word: str, name: str, amount: float | None) -> tuple[str, Codec]:
    """What kind of part a word is, and the codec with it."""
    if name == Choice.TOPK:
        if amount is None or not 0 < amount < 1:
            _refuse(word, "it needs a fraction between 0 and 1, such as topk:0.05")
        return "choice of numbers", replace(codec, choice=Choice.TOPK, amount=amount)
    if name == Choice.THRESHOLD:
        if amount is None or not 0 < amount < float("inf"):
            _refuse(word, "it needs a magnitude above 0, such as threshold:1e-3")
        return "choice of numbers", replace(codec, choice=Choice.THRESHOLD, amount=amount)
    if amount is not None:
        _refuse(word, "only topk and threshold have an amount")
    if name == Choice.SPARSE:
        return "choice of numbers", replace(codec, choice=Choice.SPARSE)
    if name in {form.value for form in Numbers} - {Numbers.FLOAT32}:
        return "form", replace(codec, numbers=Numbers(name))
    if name == "zlib":
        return "packing", replace(codec, packed=True)
    return _refuse(word, "there is no such part of a codec")


def _amount(word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        _refuse(word, f"{text!r} is no number")


def _refuse(words: str, why: str) -> NoReturn:
    raise ConfigError(f"{words!r} will not do: {why}", where="codec", remedy=_REMEDY)
