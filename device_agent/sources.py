"""Where a device's examples come from: a plug-in ``module:function``, or a file.

======================== ======================================================================================
source                   options
======================== ======================================================================================
``module:function``      the function's keyword arguments; it returns :class:`Examples`, a mapping with their
                         names, or a tuple of them (training data, then test data if there is any); the inputs of a
                         model that takes several are a tuple
``FILE.npz``             none; arrays ``train_x``, ``train_y`` and, if there is test data, ``test_x``, ``test_y``;
                         of several inputs ``train_x0``, ``train_x1``, ...
``FILE.csv``             ``label`` (column name or number, by default the last), ``test_fraction`` (the last rows,
                         by default a fifth), ``delimiter``
======================== ======================================================================================
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from device_agent.config import DataSettings
from device_agent.data import Examples, Inputs
from device_agent.runners import Array
from edgepfl.errors import ConfigError, DataError, EdgepflError

NAMES = ("train_x", "train_y", "test_x", "test_y")


def load(settings: DataSettings) -> Examples:
    """The device's data, checked for itself; :meth:`Examples.fit` checks it against a plan.

    Raises:
        DataError: the data is missing or unusable.
        ConfigError: the source or one of its options does not exist.
    """
    source, options = settings.source, settings.options
    match Path(source).suffix:
        case ".npz":
            return examples_of(_call(partial(_from_npz, Path(source)), source, options), source)
        case ".csv":
            return examples_of(_call(partial(_from_csv, Path(source)), source, options), source)
        case _:
            with _also_from(settings.folder):
                return examples_of(_call(_plug_in(source), source, options), source)


def _call(function: Callable[..., object], source: str, options: Mapping[str, Any]) -> object:
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise ConfigError(f"its options do not fit: {error}", where=f"data source {source}") from None
    except ValueError:  # written in C, so it has no signature
        pass
    try:
        return function(**options)
    except EdgepflError:
        raise
    except Exception as error:  # a plug-in's errors are its own
        raise DataError(f"failed with {type(error).__name__}: {error}", where=f"data source {source}") from error


def _plug_in(source: str) -> Callable[..., object]:
    module, _, name = source.partition(":")
    try:
        function: Callable[..., object] = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs the plug-in's own code
        raise ConfigError(
            f"cannot be imported ({type(error).__name__}: {error})",
            where=f"data source {source}",
            remedy="Install the module, or put it beside the agent's file of settings",
        ) from error
    return function


@contextmanager
def _also_from(folder: str) -> Iterator[None]:
    """Find modules in ``folder`` too, last, so that nothing there hides an installed one."""
    if not folder or folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def examples_of(result: object, source: str) -> Examples:
    """What a plug-in returned, as examples.

    Raises:
        DataError: it is none of what one may return, or its arrays are unusable.
    """
    match result:
        case Examples():
            return result
        case Mapping() if "train_x" in result and result.keys() <= set(NAMES):
            return _complete({name: _arrays(array) for name, array in result.items()})
        case [_, _] | [_, _, _, _]:
            return _complete({name: _arrays(array) for name, array in zip(NAMES, result, strict=False)})
        case _:
            raise DataError(
                f"it returned {type(result).__name__}",
                where=f"data source {source}",
                remedy=f"Return Examples, a mapping with {', '.join(NAMES)}, or a tuple of them",
            )


def _arrays(given: object) -> Array | Inputs:
    """An array, or a tuple of arrays: nothing else is several inputs, as a list may be an array's rows."""
    if isinstance(given, tuple):
        return tuple(np.asarray(each) for each in given)
    return np.asarray(given)


def _complete(arrays: Mapping[str, Array | Inputs]) -> Examples:
    """Examples from arrays by name; without test arrays, no test data."""
    for part in ("train", "test"):
        if (f"{part}_x" in arrays) != (f"{part}_y" in arrays):
            raise DataError(f"{part}_x and {part}_y go together", where="data")
    empty = {f"test_{axis}": _none_of(arrays[f"train_{axis}"]) for axis in "xy"}
    return Examples(**{**empty, **arrays})  # type: ignore[arg-type]  # targets are checked to be an array


def _none_of(array: Array | Inputs) -> Array | Inputs:
    return tuple(each[:0] for each in array) if isinstance(array, tuple) else array[:0]


def _from_npz(path: Path) -> Examples:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # by name, it leaves a bad one open
            arrays = {name: found for name in NAMES if (found := _stored(archive, name)) is not None}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot be read ({error})", where=str(path)) from error
    if not {"train_x", "train_y"} <= arrays.keys():
        raise DataError("train_x or train_y is missing", where=str(path), remedy=f"Save arrays {', '.join(NAMES)}")
    return _complete(arrays)


def _stored(archive: Mapping[str, Array], name: str) -> Array | Inputs | None:
    """An array of an archive, or those that are numbered from 0."""
    if name in archive:
        return archive[name]
    numbered = itertools.takewhile(archive.__contains__, (f"{name}{i}" for i in itertools.count()))
    return tuple(archive[each] for each in numbered) or None


def _from_csv(path: Path, label: str | int = -1, test_fraction: float = 0.2, delimiter: str = ",") -> Examples:
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"{test_fraction} is not in [0, 1)", where="data.options.test_fraction")
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = _header(file.readline(), delimiter)
            file.seek(0)
            if not any(line.partition("#")[0].strip() for line in itertools.islice(file, 1 if header else 0, None)):
                raise DataError("it has no rows", where=str(path), remedy="Collect data before joining a fleet")
            file.seek(0)
            table = np.loadtxt(file, np.float32, delimiter=delimiter, skiprows=1 if header else 0, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error})", where=str(path), remedy="Numbers only, no empty cell") from error
    column = _column(label, header, table.shape[1], str(path))
    x, y = np.delete(table, column, axis=1), table[:, column]
    cut = len(table) - int(len(table) * test_fraction)
    return Examples(x[:cut], y[:cut], x[cut:], y[cut:])


def _header(line: str, delimiter: str) -> list[str]:
    """The column names, or nothing if the first line has numbers already."""
    cells = [cell.strip().strip('"') for cell in line.rstrip("\r\n").split(delimiter)]
    try:
        [float(cell) for cell in cells]
    except ValueError:
        return cells
    return []


def _column(label: str | int, header: list[str], columns: int, where: str) -> int:
    if isinstance(label, str):
        if label not in header:
            have = ", ".join(header) or "no header"
            raise ConfigError(f"no column {label!r}", where="data.options.label", remedy=f"{where} has {have}")
        return header.index(label)
    if not -columns <= label < columns:
        raise ConfigError(f"no column {label} of {columns}", where="data.options.label")
    return label % columns
