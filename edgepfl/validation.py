"""Settings as records, and a clear error where they cannot be: what, where, and what would do.

msgspec finds what is wrong and says it in its own words (``Expected `int` >= 1 - at `$.goal```).  Here this becomes an
error for people: the value, the place as they wrote it (a file and its key, or a command's option), the choices or the
range, and the nearest name where one is close.  One function serves settings files and command lines.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from edgepfl.errors import ConfigError

Record = TypeVar("Record", bound=msgspec.Struct)
Annotation: TypeAlias = Any
Place: TypeAlias = Callable[[str], str]
"""What to call a setting, by its key ("broker.url"; empty for all of them), for people."""

_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]|(?P<value>\[\.\.\.\])")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`")
_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 64) - 1
_LONGEST = 60  # characters of a value that are shown
_KINDS: Mapping[type, str] = MappingProxyType(
    {
        inspect.BoolType: "true or false",
        inspect.IntType: "a whole number",
        inspect.FloatType: "a number",
        inspect.StrType: "a text",
        inspect.StructType: "a table",
        inspect.DictType: "a table",
        inspect.VarTupleType: "a list",
        inspect.ListType: "a list",
    }
)


class _Found(NamedTuple):
    """A place in some values: what may be there, what is there, and its key."""

    annotation: Annotation
    value: Any
    key: str


def in_file(path: object) -> Place:
    """The places of a settings file."""
    return lambda key: f"{path}, {key}" if key else str(path)


def on_command_line(command: str, options: Mapping[str, str] = MappingProxyType({})) -> Place:
    """The places of a command line.

    Args:
        command: its name, for what no option says alone.
        options: of the fields that are called otherwise than their option.
    """

    def place(key: str) -> str:
        field = re.split(r"[.\[]", key)[0]
        return options.get(field, f"--{field.replace('_', '-')}") if field else command

    return place


def convert(
    values: Mapping[str, Any], record: type[Record], place: Place, *, strict: bool = True, remedy: str = ""
) -> Record:
    """Values as a record.

    Args:
        values: by field, as TOML or a command line has them.
        record: what they are to be.
        place: what to call a setting.
        strict: false takes texts for numbers, too.
        remedy: what to do where the error itself does not say it.

    Raises:
        ConfigError: one is unknown, missing, of the wrong type or impossible, or they contradict each other.
    """
    _check_known(_Found(record, values, ""), place)
    _check_numbers(values, "", place)
    try:
        return msgspec.convert(values, record, strict=strict)
    except msgspec.ValidationError as error:
        found = _explained(error, record, values, place)
        found.remedy = found.remedy or remedy
        raise found from None


def _explained(error: msgspec.ValidationError, record: type, values: object, place: Place) -> ConfigError:
    what, _, path = str(error).rpartition(" - at ")
    found = _at(_Found(record, values, ""), path.strip("`")) if what else _Found(record, values, "")
    what = what or str(error)
    if missing := _MISSING.fullmatch(what):
        return ConfigError(f"{missing['name']} is missing", where=place(found.key))
    if not what.startswith(("Expected ", "Invalid enum value ")):  # one of the record's own
        return ConfigError(what, where=place(found.key))
    kinds = list(_kinds(found.annotation))
    may_be = " or ".join(filter(None, map(_described, kinds)))
    shown = f"{_shown(found.value)} is not {may_be}" if may_be else what[:1].lower() + what[1:]
    return ConfigError(shown, where=place(found.key), remedy=_near(found.value, _choices(kinds)))


def _near(value: object, choices: Sequence[object]) -> str:
    close = difflib.get_close_matches(str(value), [str(each) for each in choices], 1)
    return f"Did you mean {close[0]!r}?" if close and isinstance(value, str) else ""


# Walking through values beside what they may be.


def _at(root: _Found, path: str) -> _Found:
    """What is at a path of msgspec's, such as ``$.faults[0].kind`` or ``$.profiles[...]``, as far as it can be told."""
    found = root
    for step in _STEP.finditer(path):
        further = next(_steps(found, step), None)
        if further is None:
            break
        found = further
    return found


def _steps(found: _Found, step: re.Match[str]) -> Iterator[_Found]:
    for kind in _alternatives(found.annotation):
        origin, arguments = _taken_apart(kind)
        if (field := step["field"]) is not None and _is_record(kind) and isinstance(found.value, Mapping):
            annotations = {each.name: each.type for each in msgspec.structs.fields(kind)}
            if field in annotations:
                yield _Found(annotations[field], found.value.get(field), _joined(found.key, field))
        elif (index := step["index"]) is not None and origin in {tuple, list} and isinstance(found.value, Sequence):
            yield _Found(arguments[0], found.value[int(index)], f"{found.key}[{index}]")
        elif step["value"] is not None and origin is dict and isinstance(found.value, Mapping):
            wrong = (key for key, value in found.value.items() if not _converts({key: value}, kind))
            yield from (_Found(arguments[1], found.value[key], _joined(found.key, str(key))) for key in wrong)


def _converts(value: object, annotation: Annotation) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def _check_known(found: _Found, place: Place) -> None:
    """Refuse keys that no record has, before msgspec does: it names neither the nearest nor the others."""
    for kind in _alternatives(found.annotation):
        origin, arguments = _taken_apart(kind)
        if _is_record(kind) and isinstance(found.value, Mapping):
            allowed = {field.name: field.type for field in msgspec.structs.fields(kind)}
            for name, value in found.value.items():
                if name not in allowed:
                    raise _unknown(_joined(found.key, str(name)), str(name), allowed, place)
                _check_known(_Found(allowed[name], value, _joined(found.key, name)), place)
        elif origin in {tuple, list} and isinstance(found.value, list | tuple):
            for index, value in enumerate(found.value):
                _check_known(_Found(arguments[0], value, f"{found.key}[{index}]"), place)
        elif origin is dict and isinstance(found.value, Mapping):
            for name, value in found.value.items():
                _check_known(_Found(arguments[1], value, _joined(found.key, str(name))), place)


def _unknown(key: str, name: str, allowed: Mapping[str, object], place: Place) -> ConfigError:
    close = difflib.get_close_matches(name, allowed, 1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return ConfigError("there is no such setting", where=place(key), remedy=f"{hint}Allowed here: {', '.join(allowed)}")


def _check_numbers(value: object, key: str, place: Place) -> None:
    """Refuse integers of more than 64 bits: msgspec does not compare them with any limit."""
    if isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT:
        raise ConfigError("the number is too large", where=place(key), remedy="Give one of at most 64 bits")
    if isinstance(value, Mapping):
        for name, each in value.items():
            _check_numbers(each, _joined(key, str(name)), place)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check_numbers(each, f"{key}[{index}]", place)


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _taken_apart(annotation: Annotation) -> tuple[Any, tuple[Annotation, ...]]:
    """What a generic type is of, and its arguments."""
    return get_origin(annotation), get_args(annotation)


def _is_record(kind: Annotation) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _alternatives(annotation: Annotation) -> Iterator[Annotation]:
    """The types that a value may have: of ``Annotated[int, ...] | None``, ``int`` and None's."""
    origin, arguments = _taken_apart(annotation)
    if origin is Annotated:
        yield from _alternatives(arguments[0])
    elif origin in {Union, UnionType}:
        for each in arguments:
            yield from _alternatives(each)
    else:
        yield annotation


# What a value may be, in words.


def _kinds(annotation: Annotation) -> Iterator[inspect.Type]:
    kind = inspect.type_info(annotation)
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _choices(kinds: Sequence[inspect.Type]) -> list[object]:
    return [value for kind in kinds if isinstance(kind, inspect.LiteralType) for value in kind.values]


def _described(kind: inspect.Type) -> str:
    """What a value may be; empty where it goes without saying."""
    match kind:
        case inspect.Metadata(of, schema) if schema and "examples" in schema:
            return f"{_KINDS[type(of)]} such as {', '.join(map(_shown, schema['examples']))}"
        case inspect.LiteralType(values):
            return "one of " + ", ".join(map(_shown, values))
        case inspect.StrType(least, most, pattern):
            length = " that is not empty" if least else f" of at most {most} characters" if most is not None else ""
            return f"a text{length}" + (f" like {pattern}" if pattern else "")
        case inspect.IntType() | inspect.FloatType():
            return _KINDS[type(kind)] + _range(kind)
        case inspect.VarTupleType(_, least, most) | inspect.ListType(_, least, most):
            return "a list" + (f" of {least or 0} to {most}" if most is not None else "")
        case _:
            return _KINDS.get(type(kind), "")


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_shown(kind.ge)} to {_shown(kind.le)}"
    bounds = {"of at least": kind.ge, "above": kind.gt, "of at most": kind.le, "below": kind.lt}
    return " and".join(f" {word} {_shown(bound)}" for word, bound in bounds.items() if bound is not None)


def _shown(value: object) -> str:
    """A value as people wrote it, as far as that is short."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case Mapping():
            return "a table"
        case list() | tuple():
            return "a list"
        case _:
            text = repr(value)
            return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
