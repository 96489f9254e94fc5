"""What an ExecuTorch program runs where: on XNNPACK, or on portable kernels.

Read from the file itself, as ``schema/program.fbs`` and XNNPACK's ``schema.fbs`` lay it out, so it needs neither
executorch nor torch.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from edgepfl.errors import ConfigError

XNNPACK = "XnnpackBackend"
"""The delegate's name in a program."""

_KERNEL_CALL, _DELEGATE_CALL = 1, 2  # of the union InstructionArguments
_IN_SEGMENT = 1  # of the enum DataLocation

_XNNPACK_NODES = (  # of the union XNodeUnion, from 1
    "add",
    "fully_connected",
    "softmax",
    "sigmoid",
    "transpose",
    "clamp",
    "conv2d",
    "div",
    "resize_bilinear2d",
    "pad",
    "avg_pool2d",
    "minimum",
    "depthwise_conv2d",
    "max_pool2d",
    "multiply",
    "subtract",
    "floor",
    "convert",
    "global_avg_pool2d",
    "reshape",
    "argmax_pool2d",
    "sqrt",
    "ceiling",
    "hardswish",
    "leaky_relu",
    "maximum",
    "negate",
    "square",
    "elu",
    "abs",
    "prelu",
    "concatenate",
    "concatenate",
    "concatenate",
    "slice",
    "attention",
    "batch_matrix_multiply",
    "concatenate",
    "conv_transpose2d",
    "rsqrt",
    "log",
    "gelu",
    "tanh",
    "exp",
    "sin",
    "copy",
    "cos",
)


@dataclass(frozen=True)
class Nodes:
    """Operators by where they run.

    Attributes:
        delegated: XNNPACK's operators, each with how often it occurs.
        portable: the kernels that are called outside, likewise.
        delegates: how many pieces the delegate was cut into.
    """

    delegated: Mapping[str, int]
    portable: Mapping[str, int]
    delegates: int


@dataclass(frozen=True)
class _Table:
    """One table of a flatbuffer: fields by their number."""

    data: bytes
    at: int

    def _field(self, number: int) -> int | None:
        vtable = self.at - _number("<i", self.data, self.at)
        entry = 4 + 2 * number
        offset = _number("<H", self.data, vtable + entry) if entry < _number("<H", self.data, vtable) else 0
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        at = self._field(field)
        return 0 if at is None else _number(form, self.data, at)

    def table(self, field: int) -> _Table:
        at = self._field(field)
        if at is None:
            raise ValueError(f"field {field} is missing")
        return _Table(self.data, at + _number("<I", self.data, at))

    def text(self, field: int) -> str:
        at = self.table(field).at
        return self.data[at + 4 : at + 4 + _number("<I", self.data, at)].decode()

    def tables(self, field: int) -> list[_Table]:
        if self._field(field) is None:
            return []
        start = self.table(field).at
        places = range(start + 4, start + 4 + 4 * _number("<I", self.data, start), 4)
        return [_Table(self.data, at + _number("<I", self.data, at)) for at in places]


def nodes(data: bytes) -> Nodes:
    """The operators of a program's first method.

    Args:
        data: a ``.pte`` file.

    Raises:
        ConfigError: it is none.
    """
    try:
        return _nodes(data, _root(data))
    except (IndexError, UnicodeDecodeError, ValueError, struct.error) as error:
        raise ConfigError(f"not an ExecuTorch program ({error})", remedy="Give a .pte file") from error


def _nodes(data: bytes, program: _Table) -> Nodes:
    if data[4:6] != b"ET":
        raise ValueError("another file's magic number")
    plan = program.tables(1)[0]
    names = [f"{operator.text(0)}.{operator.text(1)}".rstrip(".") for operator in plan.tables(6)]
    portable: Counter[str] = Counter()
    called = 0
    for chain in plan.tables(5):
        for instruction in chain.tables(2):
            kind = instruction.number(0, "<B")
            if kind == _KERNEL_CALL:
                portable[names[instruction.table(1).number(0, "<i")]] += 1
            called += kind == _DELEGATE_CALL
    delegated = Counter(name for delegate in plan.tables(7) for name in _delegated(data, program, delegate))
    return Nodes(dict(sorted(delegated.items())), dict(sorted(portable.items())), called)


def _delegated(data: bytes, program: _Table, delegate: _Table) -> Iterator[str]:
    if delegate.text(0) != XNNPACK:
        yield delegate.text(0)
        return
    blob = _blob(data, program, delegate.table(1))
    graph = blob[_number("<I", blob, 10) :]  # after XNNPACK's own header
    for node in _root(graph).tables(1):
        yield _XNNPACK_NODES[node.number(0, "<B") - 1]


def _blob(data: bytes, program: _Table, reference: _Table) -> bytes:
    index = reference.number(1, "<I")
    if reference.number(0, "<b") != _IN_SEGMENT:
        at = program.tables(3)[index].table(0).at
        return data[at + 4 : at + 4 + _number("<I", data, at)]
    segment = program.tables(4)[index]
    start = _number("<Q", data, 24) + segment.number(0, "<Q")  # of the extended header: where segments begin
    return data[start : start + segment.number(1, "<Q")]


def _root(data: bytes) -> _Table:
    return _Table(data, _number("<I", data, 0))


def _number(form: str, data: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("an offset points outside")
    (number,) = struct.unpack_from(form, data, at)
    return int(number)
