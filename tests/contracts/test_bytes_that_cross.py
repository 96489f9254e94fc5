"""The bytes that cross the wire, stay on a device and are the server's: as declared, and as the docs' table says."""

from __future__ import annotations

import math

import pytest
from _exported import DEVICES, EVERY, VARIANTS, Exported, Options, exported, label
from _federation import Federation

from coordinator import updater
from edgepfl import codec
from edgepfl.algorithms.fpfc import FPFC
from edgepfl.plan import Role
from edgepfl.tree import Trees
from exporters import catalogue

NUMBER = 4
"""Bytes of one."""

USUAL: tuple[tuple[str, Options], ...] = tuple((name, ()) for name in EVERY)
SUBJECTS = USUAL + VARIANTS


def payload(trees: Trees) -> int:
    """Bytes of the encoded trees without the codec's header, which starts with its own length."""
    data = codec.encode(trees)
    return len(data) - 8 - int.from_bytes(data[:8], "little")


def declared(federation: Federation, role: Role) -> int:
    """Bytes of the slots of one role."""
    return NUMBER * sum(spec.size for slot in federation.plan.by_role(role).values() for spec in slot.tensors.values())


def tabled(text: str, subject: Exported) -> int:
    """Bytes of a size in the table, such as ``d_f + 2*classes*width``."""
    plan = subject.bundle.plan
    sizes = {name: spec.size for name, spec in plan.model.items()}
    d, d_h, m = sum(sizes.values()), sum(sizes[name] for name in plan.personal), len(DEVICES)
    letters = {"d": d, "d_f": d - d_h, "d_h": d_h, "m": m, **plan.dims}
    products = (
        [letters[each] if each in letters else int(each) for each in term.split("*")] for term in text.split(" + ")
    )
    return NUMBER * sum(map(math.prod, products))


@pytest.mark.parametrize(("name", "options"), SUBJECTS, ids=map(label, SUBJECTS))
def test_what_crosses_is_what_slots_declare_and_the_table_says(name: str, options: Options) -> None:
    subject = exported(name, options=options)
    federation = Federation(subject).run()
    row = catalogue.row(subject.algorithm)
    for device, result in federation.history[0].results.items():
        download = updater.downloads(federation.tuned, federation.server, device)
        for trees, role, size in (
            (download, Role.DOWN, row.down),
            (result.upload, Role.UP, row.up),
            (result.keep, Role.KEEP, row.kept),
        ):
            assert payload(trees) == declared(federation, role) == tabled(size, subject), f"{role}: {size}"
    if not isinstance(subject.algorithm, FPFC):  # whose engine has at most that, but whole slabs of it
        assert payload(federation.state) == tabled(row.server, subject), row.server
    assert federation.history[0].results.keys() == DEVICES.keys()


@pytest.mark.parametrize("name", EVERY)
def test_devices_get_the_same_bytes_unless_the_table_says_otherwise(name: str) -> None:
    federation = Federation(exported(name)).run()
    sent = {codec.encode(updater.downloads(federation.tuned, federation.server, device)) for device in DEVICES}
    apart = catalogue.row(federation.algorithm).sent == "unicast"
    assert len(sent) == (len(DEVICES) if apart else 1)
    assert updater.addressed(federation.algorithm) == apart
