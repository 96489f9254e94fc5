from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from _components import absent
from _pte import lowered
from _runner_library import library_folder
from torch.nn import functional

from device_agent import build_runner
from device_agent.runners import toolchain, wheel
from device_agent.runners.library import NAME, STEP, Library, default_folder
from edgepfl.errors import ConfigError

OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


def test_the_folder_is_complete_and_says_how_it_was_made(tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(library_folder(), moved)
    record = json.loads((moved / build_runner.RECORD).read_text(encoding="utf-8"))
    assert {file.name for file in moved.iterdir()} == {NAME, STEP, build_runner.RECORD, *wheel.LIBRARIES}
    assert record["target"] == platform.machine()
    assert record["executorch"].partition("+")[0] == version("executorch").partition("+")[0]
    assert record["tried"] == Library(moved).version
    assert record["needs"].keys() == {"GLIBC", "GLIBCXX"}
    mapped = subprocess.run(["ldd", moved / NAME], capture_output=True, text=True, check=True, timeout=60).stdout
    for name in wheel.LIBRARIES:
        assert f"{name} => {moved}/" in mapped
    assert "libtorch" not in mapped
    assert "libpython" not in mapped


def test_the_command_builds_again_over_its_own_folder_and_over_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library_folder()  # there is a compiler, and the package
    output = tmp_path / "runner"
    output.mkdir()
    (output / build_runner.RECORD).write_text("{}", encoding="utf-8")
    (output / "stale").touch()
    assert build_runner.main(["-o", str(output), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(output)
    assert told["nbytes"] > 10_000_000
    assert not (output / "stale").exists()
    assert [file.name for file in tmp_path.iterdir()] == ["runner"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="there is something else") as caught:
        build_runner.main(["-o", str(tmp_path / "mine")])
    assert "-o" in caught.value.remedy
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_agents_look_where_the_command_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEPFL_RUNNER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "edgepfl" / f"executorch-{platform.machine()}"
    assert default_folder(OTHER).name == f"executorch-{OTHER}"
    monkeypatch.setenv("EDGEPFL_RUNNER", "/opt/runner")
    assert default_folder() == Path("/opt/runner")


def test_a_missing_compiler_is_named_with_its_package() -> None:
    with pytest.raises(ConfigError, match=r"no C[+][+] compiler 'no-such-g[+][+] -O1'") as caught:
        toolchain.toolchain(platform.machine(), "no-such-g++ -O1")
    assert "apt install g++;" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"no C[+][+] compiler") as caught:
        toolchain.toolchain(OTHER, "no-such-g++")
    assert f"apt install g++-{OTHER.replace('_', '-')}-linux-gnu" in caught.value.remedy


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no memory' >&2; exit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(ConfigError, match=r"could not compile the library .fatal error: no memory") as caught:
        build_runner.main(["--compiler", str(compiler), "-o", str(tmp_path / "runner")])
    assert str(compiler) in caught.value.where
    assert [file.name for file in tmp_path.iterdir()] == ["g++"]


def test_a_package_for_another_machine_or_without_libraries_is_refused(tmp_path: Path) -> None:
    root = wheel.installed(platform.machine())
    assert wheel.examine(root.parent, platform.machine()) == wheel.examine(root, platform.machine())
    with pytest.raises(ConfigError, match=f"for {platform.machine()}, not {OTHER}") as caught:
        wheel.examine(root, OTHER)
    assert f"--platform manylinux_2_28_{OTHER}" in caught.value.remedy
    with pytest.raises(ConfigError, match="of unknown version has no include/executorch") as caught:
        wheel.examine(tmp_path, platform.machine())
    assert "1.5.1" in caught.value.remedy


def test_a_wheel_gives_what_is_needed_and_writes_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "executorch.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("include/a.h", "lib/libexecutorch.so", "exir/big.py", "version.py", "include/../../../../evil"):
            archive.writestr(f"executorch/{name}", "content")
    root = wheel.unpacked(path, tmp_path / "in" / "here")
    found = {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}
    assert found == {"include/a.h", "lib/libexecutorch.so", "version.py"}
    assert [file.name for file in tmp_path.rglob("evil")] == []
    (tmp_path / "broken.whl").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="it is no wheel"):
        wheel.unpacked(tmp_path / "broken.whl", tmp_path / "there")


def _aarch64_wheel(folder: Path) -> Path:
    if given := os.environ.get("EDGEPFL_AARCH64_WHEEL"):
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    wanted = ["--platform", "manylinux_2_28_aarch64", f"executorch=={version('executorch')}", "-d", str(folder)]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False, timeout=240)
    found = list(folder.glob("executorch-*aarch64.whl"))
    if done.returncode != 0 or not found:
        absent(
            "the aarch64 wheel of executorch",
            f"EDGEPFL_AARCH64_WHEEL=FILE after: {' '.join(command[2:4])} {' '.join(wanted)}",
        )
    return found[0]


def _mlp_step(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One step of SGD on a perceptron with one hidden layer; the gradients by hand."""
    w1, b1, w2, b2, x, y, weight, lr = arguments
    hidden = functional.relu(functional.linear(x, w1, b1))
    logits = functional.linear(hidden, w2, b2)
    hot = (y.unsqueeze(1) == torch.arange(w2.shape[0]).unsqueeze(0)).to(torch.float32)
    share = (weight / weight.sum()).unsqueeze(1)
    loss = -(torch.log_softmax(logits, -1) * hot * share).sum()
    out = (torch.softmax(logits, -1) - hot) * share
    back = torch.mm(out, w2) * (hidden > 0).to(torch.float32)
    moved = (torch.mm(back.T, x), back.sum(0), torch.mm(out.T, hidden), out.sum(0))
    return *(p - lr * g for p, g in zip((w1, b1, w2, b2), moved, strict=True)), loss


def _mlp_inputs() -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    shapes = ((32, 12), (32,), (5, 32), (5,), (8, 12))
    floats = [torch.randn(shape, generator=source) * 0.3 for shape in shapes]
    labels = torch.randint(0, 5, (8,), generator=source)
    return [*floats, labels, torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0]), torch.tensor(0.1)]


def test_a_board_gives_this_machines_numbers(tmp_path: Path) -> None:
    if platform.machine() == "aarch64":
        pytest.skip("this machine is such a board: every other test here runs on it")
    try:
        tools = toolchain.toolchain("aarch64")
    except ConfigError as error:
        absent(error.what, error.remedy)
    if tools.emulator is None:
        absent("qemu-aarch64-static", "apt install qemu-user-static")
    board = tmp_path / "board"
    package = wheel.unpacked(_aarch64_wheel(tmp_path), tmp_path / "wheel")
    built = build_runner.build(tools, wheel.examine(package, "aarch64"), board)
    assert "aarch64" in built.tried
    inputs = _mlp_inputs()
    (tmp_path / "step.pte").write_bytes(lowered(_mlp_step, tuple(inputs)))
    (tmp_path / "in").write_bytes(b"".join(tensor.numpy().tobytes() for tensor in inputs))
    words = [*tools.emulator, str(board / STEP), "step.pte", "--inputs", "in", "--outputs", "out", "--repeat", "3"]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=120)
    expected = np.concatenate([tensor.numpy().ravel() for tensor in _mlp_step(*inputs)])
    found = np.frombuffer((tmp_path / "out").read_bytes(), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
