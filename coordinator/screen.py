"""Looking at a report and its upload before they may touch the model: declared tensors, finite, not enormous."""

from __future__ import annotations

import math

import torch

from edgepfl import codec
from edgepfl.coding import Coding
from edgepfl.errors import CodecError
from edgepfl.plan import Plan
from edgepfl.tree import Trees
from edgepfl.wire import Report

_BLOCK = 1 << 17  # numbers in float64 at a time


def check_report(
    report: Report, plan: Plan, *, steps: int, max_examples: int, words: str = "", masked: int = 0
) -> None:
    """Refuse a report whose upload is not worth fetching.

    Args:
        report: well-formed, from a member of the cohort.
        plan: what was declared.
        steps: that the round has; 0 where it trains nothing.
        max_examples: the most that a device may claim; they are the weight of its upload.
        words: the run's codec.
        masked: bytes of a masked upload; 0 where none is masked.

    Raises:
        CodecError: no upload where one is due, one where none is, one longer than what was declared can be, or one made
            of no examples, of no step, of more steps than were asked for or of more examples than allowed.
    """
    where = f"report of {report.device}"
    if steps == 0:
        if report.upload is not None:
            raise CodecError("it has an upload, and nothing was to be trained", where=where)
        return
    if report.upload is None:
        raise CodecError("it has no upload", where=where)
    if report.examples == 0:
        raise CodecError("it trained on no examples", where=where)
    if report.steps == 0:
        raise CodecError("it took no step", where=where)
    if report.steps > steps:
        raise CodecError(f"it claims {report.steps} steps, and the round has {steps}", where=where)
    if report.examples > max_examples:
        raise CodecError(f"it claims {report.examples} examples, at most {max_examples} are allowed", where=where)
    if masked:
        if report.upload.size != masked:
            raise CodecError(f"a masked upload of {report.upload.size} bytes, and {masked} are due", where=where)
        return
    most = Coding(words, plan).size.bytes
    if report.upload.size > most:
        raise CodecError(f"an upload of {report.upload.size} bytes, at most {most} are possible", where=where)


def screen(data: codec.Buffer, plan: Plan, *, device: str, max_norm: float, words: str = "") -> Trees:
    """The UP slots of an upload.

    Args:
        data: the bytes; without a codec, and if they can be written to, what is given are views of them.
        plan: what was declared.
        device: who sent it, for the error.
        max_norm: the greatest Euclidean norm that a slot may have, as it is after decoding.
        words: the run's codec; without one the bytes are by :mod:`edgepfl.codec`.

    Raises:
        CodecError: not the declared tensors, not finite, or above the norm.
    """
    where = f"upload of {device}"
    trees = Coding(words, plan).decode(data, where=where)
    for slot, tree in trees.items():
        norms = {name: _norm(tensor) for name, tensor in tree.items()}
        if wrong := [name for name, norm in norms.items() if not math.isfinite(norm)]:
            raise CodecError(f"{slot}/{wrong[0]} is not finite", where=where)
        if (norm := math.hypot(*norms.values())) > max_norm:
            raise CodecError(f"{slot} has norm {norm:.3g}, at most {max_norm:g} is allowed", where=where)
    return trees


def _norm(array: object) -> float:
    """The Euclidean norm, in one pass: of numbers that float32 or int64 can hold it is finite in float64."""
    blocks = torch.split(torch.as_tensor(array).reshape(-1), _BLOCK)  # torch makes all of what it is given double
    return math.hypot(*(float(torch.linalg.vector_norm(block.double())) for block in blocks))
