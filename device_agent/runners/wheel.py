"""ExecuTorch's headers and shared libraries, which its wheel carries: installed, in a folder, or still packed."""

from __future__ import annotations

import importlib.util
import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgepfl.errors import ConfigError

LIBRARIES = (
    "libexecutorch.so",
    "libexecutorch_kernels_optimized.so",
    "libexecutorch_backend_xnnpack.so",
    "libexecutorch_threadpool.so",
)
"""What a graph needs to run: the runtime, its operators, the delegate for matrices and convolutions, its threads."""

_HEADER = "include/executorch/runtime/executor/method.h"
_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file
_MEMBER_LIMIT = 256 << 20  # bytes, unpacked
_VERSION = re.compile(r"__version__\s*=\s*[\"']([0-9A-Za-z.+]{1,40})[\"']")


@dataclass(frozen=True)
class Distribution:
    """An unpacked ``executorch`` package.

    Attributes:
        root: its folder, with ``include`` and ``lib``.
        version: its version.
        machine: the architecture of its libraries.
    """

    root: Path
    version: str
    machine: str


def get(machine: str) -> str:
    """How to get the wheel for an architecture, as an instruction."""
    return (
        "Get it with: pip download executorch --no-deps --only-binary :all: "
        f"--platform manylinux_2_28_{machine}; then give it as --wheel FILE"
    )


def installed(machine: str) -> Path:
    """The installed package; it is not imported.

    Raises:
        ConfigError: there is none.
    """
    spec = importlib.util.find_spec("executorch")
    found = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    if not found:
        remedy = f"Install it with: pip install --no-deps executorch; or leave it packed. {get(machine)}"
        raise ConfigError("the package executorch is not installed", remedy=remedy)
    return next((place for place in found if (place / _HEADER).exists()), found[0])


def unpacked(wheel: Path, folder: Path) -> Path:
    """The package of a wheel file, unpacked into ``folder`` as far as it is needed.

    Raises:
        ConfigError: it is no wheel of executorch.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if _wanted(PurePosixPath(info.filename)) and info.file_size <= _MEMBER_LIMIT:
                    archive.extract(info, folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"it is no wheel ({error})", where=str(wheel)) from error
    return folder / "executorch"


def _wanted(name: PurePosixPath) -> bool:
    if ".." in name.parts or name.parts[:1] != ("executorch",):
        return False
    return name.parts[1:2] == ("include",) or name.name in LIBRARIES or name.parts[1:] == ("version.py",)


def examine(root: Path, target: str) -> Distribution:
    """Check that a package can be built against.

    Args:
        root: the package's folder, or one that holds it.
        target: the architecture to build for.

    Raises:
        ConfigError: it lacks headers or libraries, or they are for another machine.
    """
    root = root / "executorch" if (root / "executorch" / "lib").is_dir() else root
    version = _version(root)
    missing = [name for name in (_HEADER, *(f"lib/{library}" for library in LIBRARIES)) if not (root / name).exists()]
    if missing:
        what = f"executorch {version} has no {missing[0]}"
        raise ConfigError(what, where=str(root), remedy=f"Wheels for Linux have it from 1.5.1 on. {get(target)}")
    machine = _machine(root / "lib" / LIBRARIES[0])
    if machine != target:
        raise ConfigError(f"its libraries are for {machine}, not {target}", where=str(root), remedy=get(target))
    return Distribution(root, version, machine)


def _version(root: Path) -> str:
    try:
        found = _VERSION.search((root / "version.py").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    return found[1] if found else "of unknown version"


def _machine(library: Path) -> str:
    with library.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":  # noqa: PLR2004  an ELF header up to e_machine
        raise ConfigError("it is no shared library", where=str(library))
    (number,) = struct.unpack_from("<H", head, 18)
    return _MACHINES.get(number, f"ELF machine {number}")
