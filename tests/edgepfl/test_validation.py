"""What msgspec says of wrong settings, for people: the value, the place, what would do, and the nearest name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from edgepfl.errors import ConfigError
from edgepfl.validation import convert, in_file, on_command_line

Small = Annotated[int, Meta(ge=1, le=9)]


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["fast", "slow"] = "fast"
    chunk: Literal[0, 16, 32] = 0
    share: Annotated[float, Meta(gt=0, le=1)] | None = None

    def __post_init__(self) -> None:
        if self.kind == "slow" and self.share is None:
            raise ValueError("slow needs a share")


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    goal: Small = 1
    inner: Inner = Inner()
    more: tuple[Inner, ...] = ()
    sizes: dict[str, Small] = {}
    window: Annotated[str, Meta(pattern="^[0-9]+-[0-9]+$", examples=["8-17"])] = "0-24"
    either: tuple[str, ...] | Small = ()
    maybe: Inner | None = None
    wish_list: dict[str, Inner] = {}


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a range": ({"goal": 0}, "goal", "0 is not a whole number from 1 to 9", ""),
    "an open range": ({"inner": {"share": 0.0}}, "inner.share", "0 is not a number above 0 and of at most 1", ""),
    "a type": ({"goal": "three"}, "goal", "'three' is not a whole number from 1 to 9", ""),
    "true for a number": ({"goal": True}, "goal", "true is not a whole number from 1 to 9", ""),
    "choices": ({"inner": {"chunk": 20}}, "inner.chunk", "20 is not one of 0, 16, 32", ""),
    "a near choice": ({"inner": {"kind": "fats"}}, "inner.kind", "'fats' is not one of", "Did you mean 'fast'?"),
    "in a list": ({"more": [{}, {"chunk": 1}]}, "more[1].chunk", "1 is not one of 0, 16, 32", ""),
    "in a table of numbers": ({"sizes": {"a": 1, "b": 10}}, "sizes.b", "10 is not a whole number from 1 to 9", ""),
    "in a table of tables": ({"wish_list": {"x": {"chunk": 7}}}, "wish_list.x.chunk", "7 is not one of", ""),
    "one of two types": ({"either": 0}, "either", "0 is not a list or a whole number from 1 to 9", ""),
    "perhaps a record": ({"maybe": {"chunk": 7}}, "maybe.chunk", "7 is not one of 0, 16, 32", ""),
    "a pattern with an example": ({"window": "late"}, "window", "'late' is not a text such as '8-17'", ""),
    "an empty text": ({"name": ""}, "name", "'' is not a text that is not empty", ""),
    "a missing one": ({"name": None}, "", "name is missing", ""),
    "a table": ({"inner": 3}, "inner", "3 is not a table", ""),
    "no table": ({"goal": {}}, "goal", "a table is not a whole number from 1 to 9", ""),
    "a record's own words": ({"more": [{"kind": "slow"}]}, "more[0]", "slow needs a share", ""),
    "an unknown one": (
        {"gaol": 1},
        "gaol",
        "there is no such setting",
        "'goal'? Allowed here: name, goal",
    ),
    "an unknown one in a list": ({"more": [{"shade": 1}]}, "more[0].shade", "no such setting", "'share'"),
    "an unknown one of a record or none": ({"maybe": {"chunks": 1}}, "maybe.chunks", "no such setting", "'chunk'"),
    "a number beyond 64 bits": ({"sizes": {"a": 1 << 70}}, "sizes.a", "too large", "64 bits"),
    "such a number in a list": ({"more": [{"chunk": -(1 << 70)}]}, "more[0].chunk", "too large", "64 bits"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_told_with_its_value_place_and_cure(case: str) -> None:
    fields, key, what, remedy = CASES[case]
    values = {name: value for name, value in ({"name": "x"} | fields).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        convert(values, Outer, in_file("a.toml"))
    assert caught.value.where == (f"a.toml, {key}" if key else "a.toml")
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_what_is_right_is_converted() -> None:
    fields = {"name": "x", "more": [{"kind": "slow", "share": 0.5}], "sizes": {"a": 9}, "either": ["y"]}
    found = convert(fields, Outer, in_file("a.toml"))
    assert found == Outer("x", more=(Inner("slow", share=0.5),), sizes={"a": 9}, either=("y",))


def test_records_among_the_values_are_left_as_they_are() -> None:
    assert convert({"name": "x", "inner": Inner(chunk=16)}, Outer, in_file("a.toml")).inner.chunk == 16


def test_a_command_line_is_told_by_its_options() -> None:
    place = on_command_line("edgepfl x", {"inner": "--set"})
    assert [place(key) for key in ("goal", "wish_list.x", "inner.share", "more[0]", "")] == [
        "--goal",
        "--wish-list",
        "--set",
        "--more",
        "edgepfl x",
    ]


def test_the_cure_of_the_error_goes_before_the_general_one() -> None:
    def remedy(**fields: object) -> str:
        with pytest.raises(ConfigError) as caught:
            convert({"name": "x", **fields}, Outer, in_file("a.toml"), remedy="Read the manual")
        return caught.value.remedy

    assert remedy(goal=0) == "Read the manual"
    assert remedy(inner={"kind": "fats"}) == "Did you mean 'fast'?"


def test_texts_pass_for_numbers_where_they_may() -> None:
    place = in_file("a.toml")
    assert convert({"name": "x", "goal": "3"}, Outer, place, strict=False).goal == 3
    with pytest.raises(ConfigError, match="'3' is not a whole number"):
        convert({"name": "x", "goal": "3"}, Outer, place)


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        convert({"name": "x", "goal": "y" * 1000}, Outer, in_file("a.toml"))
    assert len(caught.value.what) < 150


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([field.name for field in msgspec.structs.fields(Outer)]) | st.text(max_size=6)


def outcome(values: dict[str, Any]) -> Outer | ConfigError:
    try:
        return convert(values, Outer, in_file("a.toml"))
    except ConfigError as error:
        return error


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_comes_is_a_record_or_an_error_with_its_key(values: dict[str, Any]) -> None:
    found = outcome(values)
    if isinstance(found, ConfigError):
        assert found.where.startswith("a.toml")
        key = found.where.removeprefix("a.toml").removeprefix(", ")
        assert not key or any(key.startswith(name) for name in values)
        assert "Expected" not in found.what, "it is in msgspec's words"
