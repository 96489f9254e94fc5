"""Compiling the native library, and trying what came out."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agent.runners.library import NAME, STEP
from device_agent.runners.wheel import LIBRARIES, Distribution
from edgepfl.errors import ConfigError

SOURCES = Path(__file__).with_name("native")
"""The folder of the C++ sources."""

TARGETS = ("x86_64", "aarch64")

_LIBRARY_FILES = ("interface.cpp", "program.cpp", "platform.cpp", "threads.cpp")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# What the wheel's own CMake package tells its consumers to define.
_DEFINES = ("-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED")
_VENDORED = "include/executorch/runtime/core/portable_type/c10"
_NEEDS = re.compile(r"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)")
_COMPILING, _TRYING = 600.0, 120.0  # seconds


@dataclass(frozen=True)
class Toolchain:
    """A compiler for one architecture.

    Attributes:
        target: the architecture.
        compiler: the command, with its first arguments.
        emulator: what runs its programs here: nothing, or qemu; None where neither can.
    """

    target: str
    compiler: tuple[str, ...]
    emulator: tuple[str, ...] | None

    @property
    def native(self) -> bool:
        """Whether what it makes can be loaded into this Python."""
        return self.target == platform.machine()


def toolchain(target: str, compiler: str = "") -> Toolchain:
    """The compiler for an architecture.

    Args:
        target: one of :data:`TARGETS`.
        compiler: the command; empty: ``$CXX`` or g++ for this machine, else the cross compiler's usual name.

    Raises:
        ConfigError: there is none.
    """
    native = target == platform.machine()
    usual = (os.environ.get("CXX") or "g++") if native else f"{target}-linux-gnu-g++"
    words = tuple(shlex.split(compiler or usual))
    if not words or shutil.which(words[0]) is None:
        package = "g++" if native else f"g++-{target.replace('_', '-')}-linux-gnu"
        remedy = f"Install it with: sudo apt install {package}; or name another with --compiler"
        raise ConfigError(f"there is no C++ compiler {compiler or usual!r}", remedy=remedy)
    return Toolchain(target, words, () if native else _emulator(target))


def _emulator(target: str) -> tuple[str, ...] | None:
    qemu = shutil.which(f"qemu-{target}-static") or shutil.which(f"qemu-{target}")
    return (qemu, "-L", f"/usr/{target}-linux-gnu") if qemu else None


def build(tools: Toolchain, executorch: Distribution, folder: Path) -> None:
    """Compile the library and the program into ``folder``, and put ExecuTorch's libraries beside them.

    Nothing in it names another folder, so it works wherever it is copied to.

    Raises:
        ConfigError: the compiler fails.
    """
    for name in LIBRARIES:
        shutil.copyfile(executorch.root / "lib" / name, folder / name)
    link = [f"-L{folder}", "-Wl,-rpath,$ORIGIN", f"-Wl,-rpath-link,{folder}"]
    # The operators register themselves when they are loaded: nothing refers to them by name.
    whole = ["-Wl,--no-as-needed", *(f"-l{name[3:-3]}" for name in LIBRARIES)]
    include = ["-isystem", str(executorch.root / "include"), "-isystem", str(executorch.root / _VENDORED)]
    version = f'-DEDGEPFL_EXECUTORCH_VERSION="{executorch.version}"'
    _compile(
        tools,
        [*_FLAGS, *_DEFINES, version, *include, "-shared", *_paths(_LIBRARY_FILES), "-o", str(folder / NAME)],
        [*link, *whole, "-Wl,--no-undefined"],
    )
    _compile(tools, [*_FLAGS, *_paths(["step_main.cpp"]), "-o", str(folder / STEP)], [*link, f"-l{NAME[3:-3]}"])


def _paths(names: Sequence[str]) -> list[str]:
    return [str(SOURCES / name) for name in names]


def _compile(tools: Toolchain, words: list[str], link: list[str]) -> None:
    command = [*tools.compiler, *words, *link]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILING)  # noqa: S603  the owner's compiler
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the compiler did not work ({error})", where=tools.compiler[0]) from error
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]).strip()
        remedy = "A compiler for C++17 is needed, GCC 9 or newer"
        raise ConfigError(
            f"it could not compile the library ({reason})", where=shlex.join(tools.compiler), remedy=remedy
        )


def attempt(tools: Toolchain, folder: Path) -> str:
    """Run what was built: by itself, and inside a Python without torch where that is this machine's.

    Returns:
        What the library says of itself; empty where nothing here can run it.

    Raises:
        ConfigError: it does not work.
    """
    if tools.emulator is None:
        return ""
    version = _output([*tools.emulator, str(folder / STEP), "--version"])
    if tools.native:
        program = "import sys; from pathlib import Path; from device_agent.runners.library import Library; "
        inside = _output([sys.executable, "-c", f"{program}print(Library(Path(sys.argv[1])).version)", str(folder)])
        if inside != version:
            raise ConfigError(f"the library says {inside!r} in Python and {version!r} alone", where=str(folder))
    return version


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TRYING)  # noqa: S603  our own programs
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"what was built does not run ({error})", where=command[0]) from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ConfigError(f"what was built does not run ({reason})", where=command[0])
    return done.stdout.strip()


def needs(folder: Path) -> dict[str, str]:
    """The newest versions of the C and C++ libraries ("GLIBC", "GLIBCXX") that the files of a folder ask for."""
    newest: dict[str, tuple[int, ...]] = {}
    for name in (NAME, STEP, *LIBRARIES):
        # Names of versions lie in a file's string table as plain text.
        for kind, version in _NEEDS.findall((folder / name).read_bytes().decode("latin-1")):
            newest[kind] = max(newest.get(kind, ()), tuple(int(part) for part in version.split(".")))
    return {kind: ".".join(str(part) for part in version) for kind, version in sorted(newest.items())}
