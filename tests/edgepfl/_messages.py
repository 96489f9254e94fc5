"""Hypothesis strategies for messages, built from the limits that the records themselves declare."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from edgepfl.wire import KINDS, Message

CHARACTERS = st.characters(codec="utf-8")
SIZE = 4  # items of a collection, and characters beyond the least


def messages() -> st.SearchStrategy[Message]:
    """Any message of any kind."""
    return st.one_of([of_kind(kind) for kind in KINDS.values()])


def of_kind(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of one kind."""
    strategy: st.SearchStrategy[Message] = _of(inspect.type_info(kind))
    return strategy


def _of(kind: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: PLR0912  a case for each type
    match kind:
        case inspect.Metadata(type=bare):  # with examples for people
            return _of(bare)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.IntType(ge=least, le=most):
            return st.integers(-(1 << 63) if least is None else least, (1 << 63) - 1 if most is None else most)
        case inspect.FloatType(ge=low, gt=above, le=high):
            lowest = above if low is None else low
            return st.floats(lowest, high, exclude_min=above is not None, allow_nan=False, allow_infinity=False)
        case inspect.BytesType():
            return st.binary(max_size=200)
        case inspect.StrType():
            return _text(kind)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_of(key), _of(value), max_size=SIZE)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item), max_size=SIZE).map(tuple)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_of, items))
        case inspect.UnionType(types=types):
            return st.one_of([_of(each) for each in types])
        case inspect.StructType():
            return _record(kind)
        case _:
            raise NotImplementedError(f"no strategy for {kind}")


def _text(kind: inspect.StrType) -> st.SearchStrategy[str]:
    if kind.pattern is not None:
        return st.from_regex(kind.pattern, fullmatch=True)
    least, most = kind.min_length or 0, kind.max_length or 64
    return st.text(CHARACTERS, min_size=least, max_size=min(most, least + SIZE)) | st.just("\U0001f600" * most)


def _record(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    fields = {field.name: _field(kind.cls, field) for field in kind.fields}
    return st.fixed_dictionaries(fields).map(lambda values: kind.cls(**values))


def _field(record: type[msgspec.Struct], field: inspect.Field) -> st.SearchStrategy[Any]:
    """The version in a message is the record's own; all else may be anything that its type allows."""
    is_protocol = field.name == "protocol" and issubclass(record, Message)
    return st.just(field.default) if is_protocol else _of(field.type)
