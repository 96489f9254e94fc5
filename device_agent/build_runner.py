"""``edgepfl build-runner``: the library that runs ExecuTorch graphs without torch."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from device_agent.runners import toolchain, wheel
from device_agent.runners.library import ABI, NAME, default_folder
from device_agent.runners.toolchain import Toolchain
from edgepfl.errors import ConfigError

RECORD = "runner.json"
"""What a folder says of how it was made."""

_EPILOG = """\
The folder is complete: copy it to the board as it is, no package executorch is needed there. An agent looks for it in
$EDGEPFL_RUNNER, else in ~/.cache/edgepfl/executorch-MACHINE, unless its settings say where:

  [runtime]
  kind = "executorch"
  library = "runner"

for a Raspberry Pi, on another machine (sudo apt install g++-aarch64-linux-gnu, and qemu-user-static to try it):

  pip download executorch --no-deps --only-binary :all: --platform manylinux_2_28_aarch64
  edgepfl build-runner --target aarch64 --wheel executorch-*aarch64.whl -o runner
"""


@dataclass(frozen=True)
class Built:
    """What was built.

    Attributes:
        folder: where it lies.
        target: its architecture.
        executorch: the version of ExecuTorch in it.
        abi: the version of its interface.
        compiler: the command that compiled it.
        needs: the C and C++ libraries that the board must have, at least.
        nbytes: of all files together.
        tried: what it said of itself when it ran here; empty if nothing here can run it.
    """

    folder: str
    target: str
    executorch: str
    abi: int
    compiler: str
    needs: dict[str, str]
    nbytes: int
    tried: str


def main(arguments: list[str]) -> int:
    """Build the library, and say what was done."""
    words = _parser().parse_args(arguments)
    output = words.output or default_folder(words.target)
    tools = toolchain.toolchain(words.target, words.compiler)
    with tempfile.TemporaryDirectory(prefix="edgepfl-") as scratch:
        executorch = wheel.examine(_package(words, Path(scratch)), words.target)
        built = build(tools, executorch, output)
    print(json.dumps(asdict(built)) if words.json else _told(built))  # noqa: T201  a command prints
    return 0


def build(tools: Toolchain, executorch: wheel.Distribution, output: Path) -> Built:
    """Build into ``output``, all of it or nothing.

    Raises:
        ConfigError: it cannot be written, the compiler fails, or what comes out does not run.
    """
    if output.exists() and not (output / RECORD).exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError("there is something else", where=str(output), remedy="Name another folder with -o")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
            made = Path(scratch) / output.name
            made.mkdir()
            built = _built(tools, executorch, made, output)
            (made / RECORD).write_text(json.dumps(asdict(built), indent=1) + "\n", encoding="utf-8")
            if output.exists():
                output.rename(Path(scratch) / "before")
            made.rename(output)
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(output)) from error
    return built


def _built(tools: Toolchain, executorch: wheel.Distribution, made: Path, output: Path) -> Built:
    toolchain.build(tools, executorch, made)
    return Built(
        folder=str(output.absolute()),
        target=tools.target,
        executorch=executorch.version,
        abi=ABI,
        compiler=" ".join(tools.compiler),
        needs=toolchain.needs(made),
        nbytes=sum(file.stat().st_size for file in made.iterdir()),
        tried=toolchain.attempt(tools, made),
    )


def _package(words: argparse.Namespace, scratch: Path) -> Path:
    if words.wheel is not None:
        return wheel.unpacked(words.wheel, scratch)
    root: Path = words.executorch or wheel.installed(words.target)
    return root


def _told(built: Built) -> str:
    needs = " and ".join(
        f"{'glibc' if kind == 'GLIBC' else 'libstdc++ with GLIBCXX'} {least}" for kind, least in built.needs.items()
    )
    tried = f"it runs here: {built.tried}" if built.tried else "nothing here can run it, so it was not tried"
    return (
        f"{built.folder}: {NAME} and what it needs, {built.nbytes / 1e6:.1f} MB, for {built.target}\n"
        f"ExecuTorch {built.executorch}, compiled with {built.compiler}; {tried}\n"
        f"the board must have at least {needs}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl build-runner",
        description="Build the library that runs ExecuTorch graphs without torch, against the headers and\n"
        "libraries that the wheel of executorch carries.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    machine = platform.machine()
    parser.add_argument(
        "--target", choices=toolchain.TARGETS, default=machine, help="architecture (default: %(default)s)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--wheel", type=Path, metavar="FILE", help="executorch's wheel for the target")
    source.add_argument(
        "--executorch", type=Path, metavar="DIR", help="executorch's folder (default: the installed one)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the folder to make (default: where agents look)"
    )
    parser.add_argument("--compiler", default="", metavar="CXX", help="C++ compiler (default: g++ for the target)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser
