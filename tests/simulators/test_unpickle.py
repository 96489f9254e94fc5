"""A file may build arrays and name nothing else."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepfl.errors import DataError
from simulators.datasets.unpickle import load_npy


def npy(content: object, protocol: int = 2) -> bytes:
    """A pickled .npy file, as NumPy writes them."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
    array = np.empty((), object)
    array[()] = content
    return stream.getvalue() + pickle.dumps(array, protocol)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_and_containers_come_back(protocol: int) -> None:
    content = {"X": [np.arange(6.0).reshape(3, 2).T, np.array([1.5], np.float32)], "y": np.array([3, 4]), "name": "PEN"}
    raw = npy(content, protocol)
    if protocol == 5:  # it writes arrays through a function that we have no need to admit
        with pytest.raises(DataError, match="_frombuffer"):
            load_npy(raw, where="file")
        return
    found: Any = load_npy(raw, where="file")
    assert found.keys() == content.keys()
    assert np.array_equal(found["X"][0], np.arange(6.0).reshape(3, 2).T)
    assert found["X"][1].dtype == np.float32
    assert found["y"].tolist() == [3, 4]


def test_a_call_of_the_system_is_refused_and_not_made(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for function, argument in ((os.system, f"touch {proof}"), (subprocess.getoutput, f"touch {proof}"), (eval, "1")):
        with pytest.raises(DataError, match="builds no array") as caught:
            load_npy(npy({"X": Calls(function, argument)}), where="file")
        assert caught.value.where == "file"
    assert not proof.exists()


@pytest.mark.parametrize("value", [Path("x"), DataError("x"), 1 + 2j, np.load, np.random.default_rng])
def test_other_classes_and_functions_are_refused(value: object) -> None:
    with pytest.raises(DataError, match="builds no array") as caught:
        load_npy(npy({"X": value}), where="file")
    assert caught.value.remedy


def test_dtype_and_bytes_take_no_strange_arguments() -> None:
    for name in (b"c_codecs\nencode\n(Vx\nVutf-7\ntR.", b"cnumpy\ndtype\n(Vno such dtype\ntR.", b"P1\n."):
        with pytest.raises(DataError, match="cannot be read") as caught:
            load_npy(npy(None)[: -len(pickle.dumps(np.empty((), object), 2))] + name, where="file")
        assert caught.value.where == "file"


def test_a_damaged_file_is_refused() -> None:
    raw = npy({"X": [1]})
    plain = io.BytesIO()
    np.save(plain, np.arange(3))
    for damaged in (b"", raw[:60], raw[:-3], b"\x80\x02}q\x00.", plain.getvalue()):
        with pytest.raises(DataError, match="cannot be read") as caught:
            load_npy(damaged, where="file")
        assert "unchanged" in caught.value.remedy
