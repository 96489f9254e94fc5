"""What a value on the command line means, and what is said where it means nothing."""

from __future__ import annotations

from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import pytest

from edgepfl.errors import ConfigError, ExportError
from exporters.named import Named, function, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("(1, 2)", (1, 2)),
        ("None", None),
        ("'torch.nn:GELU'", "torch.nn:GELU"),
        ("relu", "relu"),
        ("", ""),
        ("cuda:0", "cuda:0"),
        ("a:b:c", "a:b:c"),
        ("one, two: three", "one, two: three"),
        ("m:f(3", "m:f(3"),
        ("https://example.org", "https://example.org"),
    ],
)
def test_literals_and_text(text: str, value: object) -> None:
    assert read(text, "--model-arg x") == value
    assert type(read(text, "--model-arg x")) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("collections:OrderedDict", OrderedDict),
        ("fractions:Fraction(1, denominator=3)", Fraction(1, 3)),
        ("fractions:Fraction.from_float(0.5)", Fraction(1, 2)),
        ("collections:OrderedDict()", OrderedDict()),
    ],
)
def test_a_name_is_what_it_stands_for_and_a_call_what_it_gives(text: str, value: object) -> None:
    found = read(text, "--model-arg x")
    assert isinstance(found, Named)
    assert found.value("--model-arg x") == value


@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        ("no_such_module_of_ours:f", ConfigError, "module no_such_module_of_ours cannot be imported"),
        ("fractions:Fractals", ConfigError, "module fractions has no function or class 'Fractals'"),
        ("fractions:Fraction.from_fractal(1)", ConfigError, "no function or class 'Fraction.from_fractal'"),
        ("fractions:Fraction(1, denominator=0)", ExportError, "fractions:Fraction failed (Fraction(1, 0))"),
        ("fractions:Fraction(nominator=0)", ExportError, "unexpected keyword argument 'nominator'"),
    ],
)
def test_what_stands_for_nothing_is_told_with_its_option(
    text: str, kind: type[ConfigError | ExportError], what: str
) -> None:
    found = read(text, "--model-arg x")
    assert isinstance(found, Named)
    with pytest.raises(kind) as caught:
        found.value("--model-arg x")
    assert what in caught.value.what
    assert caught.value.where == "--model-arg x"
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["m:f(x)", "m:f(**{'a': 1})", "m:f()()", "m:f(n:g())", "m:f(1 +)", "m:f(*[1])"])
def test_arguments_must_be_literals(text: str) -> None:
    with pytest.raises(ConfigError, match="are no arguments that can be read") as caught:
        read(text, "--model-arg x")
    assert caught.value.where == "--model-arg x"
    assert "my_models:Config" in caught.value.remedy


def test_nothing_is_run_until_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tells_of_its_import.py").write_text("open('it_ran', 'w').close()\ndef f():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    found = read("tells_of_its_import:f()", "x")
    assert isinstance(found, Named)
    assert not (tmp_path / "it_ran").exists()
    assert found.value("x") == 3
    assert (tmp_path / "it_ran").exists()


@pytest.mark.parametrize("path", ["Fraction", ":Fraction", "fractions:", ""])
def test_a_path_that_is_none(path: str) -> None:
    with pytest.raises(ConfigError, match="is not MODULE:FUNCTION") as caught:
        function(path, "--model")
    assert "my_models:make_net" in caught.value.remedy
    assert caught.value.where == "--model"
