"""No module of the product can be made to run what it reads: no pickle, no eval and nothing else that builds objects.

The code is read as syntax, so a name that is imported, renamed or reached as an attribute counts, and a comment does
not.  The one exception is the reader of the demonstration's data, which admits four functions of NumPy by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ("coordinator", "device_agent", "edgepfl", "exporters", "simulators")
MODULES = sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))

UNSAFE = {
    "_pickle", "cPickle", "cloudpickle", "dill", "hickle", "joblib", "jsonpickle", "marshal", "pandas", "pickle",
    "pickle5", "pickletools", "ruamel", "shelve", "yaml",
}  # fmt: skip
"""Modules that build objects, or run code, from what they read; pandas does by its HDF and pickle readers."""

BUILTINS = {"__import__", "compile", "eval", "exec"}
EXCEPTIONS = {
    "exporters/source.py": {"from pickle import UnpicklingError"},  # the name of an error that torch raises
    "simulators/datasets/unpickle.py": {"import pickle"},
}
"""What a module may have, as it is written."""


def found(source: str) -> Iterator[str]:
    """Each thing in a module's source that can run what is read, as it is written."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (ast.unparse(node) for each in names if each.name.partition(".")[0] in UNSAFE)
            case ast.ImportFrom(module=str(module), names=names):
                inside = {f"{module}.{each.name}" for each in names}
                if module.partition(".")[0] in UNSAFE or inside & {
                    "torch.load",
                    "torch.serialization.load",
                    "builtins.eval",
                    "builtins.exec",
                }:
                    yield ast.unparse(node)
            case ast.Call():
                if _runs(node):
                    yield ast.unparse(node)


def _runs(call: ast.Call) -> bool:
    """Whether a call can run what it reads."""
    name = ast.unparse(call.func)
    keywords = {each.arg: each.value for each in call.keywords}
    if name in BUILTINS or name.startswith("builtins."):
        return True
    if name in {"importlib.import_module", "import_module"}:
        return any(isinstance(each, ast.Constant) and str(each.value).partition(".")[0] in UNSAFE for each in call.args)
    if "allow_pickle" in keywords and not _is(keywords["allow_pickle"], value=False):
        return True
    if name.rpartition(".")[2] in {"load", "load_state_dict_from_url"} and name.split(".")[0] == "torch":
        return not _is(keywords.get("weights_only"), value=True)
    return name in {"np.load", "numpy.load"} and len(call.args) > 2


def _is(node: ast.expr | None, *, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_there_are_modules() -> None:
    assert len(MODULES) > 300
    assert all((ROOT / name).exists() for name in EXCEPTIONS)


@pytest.mark.parametrize("room", PRODUCT)
def test_no_module_runs_what_it_reads(room: str) -> None:
    wrong = {
        f"{name}: {each}"
        for path in MODULES
        if (name := path.relative_to(ROOT).as_posix()).startswith(f"{room}/")
        for each in set(found(path.read_text("utf-8"))) - EXCEPTIONS.get(name, set())
    }
    assert wrong == set()


def test_the_exceptions_are_needed() -> None:
    assert {name: set(found((ROOT / name).read_text("utf-8"))) for name in EXCEPTIONS} == EXCEPTIONS


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import os, pickle as p",
        "from marshal import loads",
        "def f():\n    import shelve",
        "import yaml.reader",
        "from torch import load",
        "importlib.import_module('dill')",
        "__import__('os')",
        "eval('1')",
        "exec(text)",
        "builtins.eval(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=wanted)",
        "np.load(path, None, True)",
        "np.savez(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.hub.load(path)",
    ],
)
def test_what_is_planted_is_found(planted: str) -> None:
    assert list(found(f"x = 1\n{planted}\n"))


@pytest.mark.parametrize(
    "harmless",
    [
        '"import pickle"',
        "# eval(text)",
        "module.eval()",
        "import_module('json')",
        "np.load(path)",
        "np.load(path, mmap_mode='r')",
        "np.load(path, allow_pickle=False)",
        "torch.load(path, weights_only=True)",
        "from edgepfl.wire import decode",
        "database.exec(text)",
    ],
)
def test_what_is_harmless_is_not(harmless: str) -> None:
    assert not list(found(f"x = 1\n{harmless}\n"))
