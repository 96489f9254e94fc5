"""Wherever a record is read from bytes, each error that msgspec may raise becomes one of ours.

``msgspec.DecodeError`` does not cover values that are nested too deep, nor, in some versions, text that is not UTF-8
(https://github.com/msgspec/msgspec/issues/714).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("coordinator", "device_agent", "edgepfl")
READS = re.compile(r"msgspec\.(json|msgpack|toml)\.decode|_?[A-Z][A-Z_]*\.decode|decoder\.decode")
NEEDED = ("msgspec.DecodeError", "UnicodeError", "RecursionError")
TRUSTED = {"coordinator/asking.py, ask"}  # what a coordinator answers on its own user's socket


def unguarded(source: str) -> Iterator[str]:
    """The functions of a module that read a record and let one of its errors through."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = list(ast.walk(node))
            reads = any(isinstance(each, ast.Call) and READS.fullmatch(ast.unparse(each.func)) for each in inside)
            caught = {
                ast.unparse(error)
                for each in inside
                if isinstance(each, ast.ExceptHandler) and each.type is not None
                for error in ast.walk(each.type)
                if isinstance(error, ast.expr)
            }
            if reads and not caught.issuperset(NEEDED):
                yield node.name


def test_every_reader_of_records_is_guarded() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}, {name}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for name in unguarded(path.read_text("utf-8"))
    }
    assert found == TRUSTED


READER = "def read(data):\n    try:\n        return {call}(data)\n    except ({errors}) as error:\n        raise"


@pytest.mark.parametrize("call", ["msgspec.json.decode", "msgspec.msgpack.decode", "_HEAD.decode", "decoder.decode"])
def test_what_is_planted_is_found(call: str) -> None:
    assert not list(unguarded(READER.format(call=call, errors=", ".join(NEEDED))))
    for lacking in NEEDED:
        errors = ", ".join(each for each in NEEDED if each != lacking)
        assert list(unguarded(READER.format(call=call, errors=errors))) == ["read"]
