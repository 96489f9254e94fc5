"""The bundle: a plan, its graphs, the initial model and golden vectors in one file.

It is a zip archive without dates, so packing the same content with the same zlib gives the same digest.  It crosses to
a device once; after that only weights travel.  Members::

    plan.json                    the Plan
    model.safetensors            the initial parameters, as slot "model"
    graphs/RUNTIME/ENTRY         each graph in the runtime's own format
    golden/ENTRY.safetensors     inputs and outputs that the graph must reproduce, as slots "in", "out" and "allowed"

Reading trusts nothing: member names come from an allow list and sizes are limited before anything is unpacked.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from edgepfl import codec
from edgepfl.errors import BundleError, CodecError
from edgepfl.plan import FORMAT, MODEL, Entry, Graph, Plan, TensorSpec
from edgepfl.tree import Tree

MEMBER_LIMIT = 512 << 20  # bytes, unpacked
PLAN_LIMIT = 4 << 20  # bytes, unpacked: JSON grows tenfold when it is parsed
GRAPH_LIMIT = 64 << 20  # bytes, unpacked: the weights are not in it
TOTAL_LIMIT = 1 << 30  # bytes, unpacked
MEMBER_COUNT = 64
_MEMBER = re.compile(
    r"plan\.json|model\.safetensors|graphs/(onnx|executorch)/[a-z]{1,16}|golden/[a-z]{1,16}\.safetensors"
)
_ENTRY = b"PK\x01\x02"  # begins each entry of a zip's directory
_ENTRIES = 4 * MEMBER_COUNT  # packed bytes may look like one, a time in 4 GB
# What zipfile raises for bytes that are no archive, or a damaged or encrypted one.
_NOT_A_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold


class Bundle(msgspec.Struct, frozen=True):
    """What a bundle file holds.

    Attributes:
        plan: the plan.
        model: the initial parameters.
        graphs: runtime ("onnx", "executorch") to entry to the graph's bytes.
        golden: entry to the safetensors bytes of one checked call.
    """

    plan: Plan
    model: Tree
    graphs: Mapping[str, Mapping[Entry, bytes]]
    golden: Mapping[Entry, bytes]


def pack(bundle: Bundle) -> bytes:
    """The bytes of a bundle file; the same bundle gives the same bytes."""
    members = {
        "plan.json": msgspec.json.format(msgspec.json.encode(bundle.plan, order="deterministic"), indent=1),
        "model.safetensors": codec.encode({MODEL: bundle.model}),
    }
    for runtime, graphs in bundle.graphs.items():
        members |= {f"graphs/{runtime}/{entry}": data for entry, data in graphs.items()}
    members |= {f"golden/{entry}.safetensors": data for entry, data in bundle.golden.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), members[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def unpack(data: bytes, *, where: str = "bundle", golden: bool = True) -> Bundle:
    """The bundle in ``data``.

    Args:
        data: a bundle file.
        where: what the errors call it.
        golden: whether to read the golden vectors, which are most of a bundle and no part of training.

    Raises:
        BundleError: damaged, too big, of another format, or without a member it must have.
    """
    plan, members = _members(data, where, golden=golden)
    try:
        model = codec.decode(members["model.safetensors"], {MODEL: plan.model}, where=where)[MODEL]
    except KeyError:
        raise BundleError("model.safetensors is missing", where=where) from None
    except CodecError as error:
        raise BundleError(f"model.safetensors: {error.what}", where=where) from error
    graphs: dict[str, dict[Entry, bytes]] = {}
    vectors: dict[Entry, bytes] = {}
    for name, content in members.items():
        folder, _, rest = name.partition("/")
        if folder == "graphs":
            runtime, entry = rest.split("/")
            graphs.setdefault(runtime, {})[_entry(entry, where)] = content
        elif folder == "golden":
            vectors[_entry(rest.removesuffix(".safetensors"), where)] = content
    for runtime, files in graphs.items():
        if files.keys() != plan.graphs.keys():
            raise BundleError(f"the {runtime} graphs are not those of the plan", where=where)
    return Bundle(plan, model, graphs, vectors)


class Golden(NamedTuple):
    """One checked call of a graph, by port name.

    Attributes:
        feeds: inputs.
        expected: what the reference gave for them.
        allowed: the greatest error of each output, a number without dimensions: another processor rounds otherwise.
    """

    feeds: Tree
    expected: Tree
    allowed: Tree


def golden_bytes(golden: Golden) -> bytes:
    """A golden call as a bundle holds it."""
    return codec.encode({"in": golden.feeds, "out": golden.expected, "allowed": golden.allowed})


def golden_vectors(graph: Graph, data: bytes, *, where: str) -> Golden:
    """The golden call of one graph.

    Raises:
        CodecError: it is not the graph's.
    """
    expected = {
        "in": {port.name: port.spec for port in graph.inputs},
        "out": {port.name: port.spec for port in graph.outputs},
        "allowed": {port.name: TensorSpec(()) for port in graph.outputs},
    }
    trees = codec.decode(data, expected, where=where)
    return Golden(trees["in"], trees["out"], trees["allowed"])


def _members(data: bytes, where: str, *, golden: bool) -> tuple[Plan, dict[str, bytes]]:
    """The plan, and the other members by name; the model only if it can be the plan's."""
    if (entries := data.count(_ENTRY)) > _ENTRIES:  # before zipfile makes an object of each
        raise BundleError(f"{entries} members, at most {MEMBER_COUNT} are allowed", where=where)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [info for info in archive.infolist() if golden or not info.filename.startswith("golden/")]
            _check_members(infos, where)
            named = {info.filename: info for info in infos}
            plan = _plan(_read(archive, named.pop("plan.json"), where) if "plan.json" in named else None, where)
            for name, most in _most_tensors(plan).items():
                if name in named and named[name].file_size > most:
                    raise BundleError(f"{name} unpacks to more than the plan's {most} bytes", where=where)
            return plan, {name: _read(archive, info, where) for name, info in named.items()}
    except _NOT_A_ZIP as error:
        raise BundleError(
            f"not a bundle file ({error})", where=where, remedy="Make one with: edgepfl export"
        ) from error


def _most_tensors(plan: Plan) -> dict[str, int]:
    """The most bytes of each member that holds tensors, by what the plan says of these."""
    calls = {f"golden/{entry}.safetensors": (*graph.inputs, *graph.outputs) for entry, graph in plan.graphs.items()}
    allowed = TensorSpec(()).nbytes
    golden = {name: sum(port.spec.nbytes + allowed for port in ports) for name, ports in calls.items()}
    sizes = {"model.safetensors": sum(spec.nbytes for spec in plan.model.values()), **golden}
    return {name: codec.HEADER_LIMIT + size for name, size in sizes.items()}


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> bytes:
    """A member; :meth:`zipfile.ZipFile.read` would unpack all that is packed before it cuts it to ``file_size``."""
    with archive.open(info) as member:
        content = member.read(info.file_size)
    if len(content) != info.file_size:
        raise BundleError(f"member {info.filename} has {len(content)} of {info.file_size} bytes", where=where)
    return content


def _check_members(infos: list[zipfile.ZipInfo], where: str) -> None:
    """Refuse what must not even be unpacked."""
    if len(infos) > MEMBER_COUNT:
        raise BundleError(f"{len(infos)} members, at most {MEMBER_COUNT} are allowed", where=where)
    if len({info.filename for info in infos}) < len(infos):
        raise BundleError("a member is in it twice", where=where)
    for info in infos:
        if not _MEMBER.fullmatch(info.filename):
            raise BundleError(f"member {info.filename!r} does not belong in a bundle", where=where)
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise BundleError(f"member {info.filename} is packed with method {info.compress_type}", where=where)
        if info.file_size > _limit(info.filename):
            raise BundleError(f"member {info.filename} unpacks to {info.file_size} bytes", where=where)
    if sum(info.file_size for info in infos) > TOTAL_LIMIT:
        raise BundleError(f"it unpacks to more than {TOTAL_LIMIT} bytes", where=where)


def _limit(member: str) -> int:
    """The most bytes that a member may unpack to."""
    if member == "plan.json":
        return PLAN_LIMIT
    return min(GRAPH_LIMIT, MEMBER_LIMIT) if member.startswith("graphs/") else MEMBER_LIMIT


def _plan(data: bytes | None, where: str) -> Plan:
    if data is None:
        raise BundleError("plan.json is missing", where=where)
    try:
        found = msgspec.json.decode(data, type=_Version).format
        if found == FORMAT:
            return msgspec.json.decode(data, type=Plan)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BundleError(f"plan.json is not a plan ({error})", where=where) from error
    raise BundleError(
        f"format {found}, and this edgepfl reads {FORMAT}",
        where=where,
        remedy="Export the bundle again, or install the edgepfl that made it",
    )


class _Version(msgspec.Struct):
    """What plans of every format have; the first had no number."""

    format: int = 1


def _entry(name: str, where: str) -> Entry:
    try:
        return Entry(name)
    except ValueError:
        raise BundleError(f"{name!r} is no graph of a bundle", where=where) from None
