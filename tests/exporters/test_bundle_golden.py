"""A bundle made by this format's first version stays readable, and its graphs still compute what they did.

``tests/golden/v2/ditto_mlp.bundle`` is Ditto on a ``zoo.mlp`` of 6 inputs, 5 hidden units and 3 classes with
batches of 4, packed once.  It is never made again: a change that breaks it breaks the devices that hold one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgepfl import bundle
from edgepfl.bundle import Bundle, golden_vectors
from edgepfl.errors import BundleError
from edgepfl.plan import Entry
from exporters.ort import PoisonedOnnx

FOLDER = Path(__file__).parents[1] / "golden"
FILE = FOLDER / "v2" / "ditto_mlp.bundle"
ENTRIES = [Entry.BEGIN, Entry.STEP, Entry.FINISH, Entry.MODELS, Entry.EVALUATE, Entry.PREDICT]


@pytest.fixture(scope="module")
def golden() -> Bundle:
    return bundle.unpack(FILE.read_bytes())


def test_it_reads_as_it_was_written(golden: Bundle) -> None:
    assert golden.plan.algorithm == "ditto"
    assert golden.plan.models == ("personal", "global")
    assert golden.plan.hyper == {"lr": 0.05, "lam": 0.1}
    assert set(golden.plan.graphs) == set(ENTRIES)
    assert sum(tensor.size for tensor in golden.model.values()) == 53
    assert FILE.stat().st_size < 60_000


@pytest.mark.parametrize("entry", ENTRIES)
def test_its_golden_vectors_replay(golden: Bundle, entry: Entry) -> None:
    ports = golden.plan.graphs[entry]
    call = golden_vectors(ports, golden.golden[entry], where="golden")
    found = PoisonedOnnx(golden.graphs["onnx"][entry], ports).run(call.feeds)
    assert found.keys() == call.expected.keys()
    for name, array in call.expected.items():
        assert 0 < call.allowed[name] < 1e-3
        np.testing.assert_allclose(found[name], array, rtol=0, atol=float(call.allowed[name]), err_msg=name)


def test_the_format_before_is_refused_with_what_to_do() -> None:
    with pytest.raises(BundleError, match="format 1, and this edgepfl reads 2") as caught:
        bundle.unpack((FOLDER / "v1" / "ditto_mlp.bundle").read_bytes())
    assert "Export the bundle again" in caught.value.remedy
