"""What the package promises by name: few public names, all documented, and algorithms found by file."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import edgepfl
from edgepfl import algorithms
from edgepfl.algorithms import Algorithm

ROOT = Path(edgepfl.__file__).parents[1]
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(edgepfl.__path__, "edgepfl.")
    if not info.name.rpartition(".")[2].startswith("_")
)


def own(module: ModuleType) -> Iterator[tuple[str, type | object]]:
    """The public classes and functions that a module defines itself."""
    for name, value in vars(module).items():
        documentable = inspect.isclass(value) or inspect.isfunction(value)
        if documentable and not name.startswith("_") and value.__module__ == module.__name__:
            yield name, value


def test_the_packages_public_names_are_few_and_sorted() -> None:
    names = edgepfl.__all__
    constants, classes, others = [
        [name for name in names if kind(name)]
        for kind in (str.isupper, lambda name: name[0].isupper() and not name.isupper(), lambda name: name[0] == "_")
    ]
    assert names == sorted(constants) + sorted(classes) + sorted(others)
    assert len(names) == len(set(names)) <= 30
    assert all(hasattr(edgepfl, name) for name in names)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert len((module.__doc__ or "").split()) >= 5
    assert [public for public, value in own(module) if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_is_documented(name: str) -> None:
    classes = [(public, value) for public, value in own(importlib.import_module(name)) if inspect.isclass(value)]
    bare = [
        f"{public}.{method}"
        for public, value in classes
        for method, function in vars(value).items()
        if inspect.isfunction(function) and not method.startswith("_") and not inspect.getdoc(getattr(value, method))
    ]
    assert bare == []
    assert all(value.__name__ == public for public, value in classes)


def test_every_algorithms_file_is_found() -> None:
    files = {path.stem for path in (ROOT / "edgepfl" / "algorithms").glob("[!_]*.py")}
    assert set(algorithms.names()) == files
    assert list(algorithms.names()) == sorted(files)


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_is_one_final_frozen_value(name: str) -> None:
    kind = algorithms.load(name)
    assert kind.__name__.lower() == name
    assert kind.__bases__ == (Algorithm,)
    algorithm = algorithms.build(name, {})
    assert algorithm == kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.inner_steps = 3  # type: ignore[misc]  # the point


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_has_its_test_and_its_import_contract(name: str) -> None:
    assert (ROOT / "tests" / "algorithms" / f"test_{name}.py").is_file()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (independent,) = [contract for contract in contracts if contract["name"] == "no algorithm imports another"]
    assert independent["modules"] == ["edgepfl.algorithms.*"]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_no_document_has_a_gap_left_to_fill(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert "@@" not in text
    assert len(text) > 500
