"""Preparing: what goes into the folder, what is refused, and how tools are found."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu.core.errors import CompileError, DeviceError, FormatError, Unsupported
from gpu.drivers.nv.code.cubin import Cubin
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance import prepare as making
from tools.hw_acceptance.kernels import ARCHITECTURES, SOURCES
from tools.hw_acceptance.nvrtc import load_nvrtc
from tools.hw_acceptance.prepare import check_architectures, make_wheel, prepare
from tools.hw_acceptance.vectors.pack import write
from unit.hw_acceptance.fake_programs import FakeCompiler


def _fake_wheel(target: Path) -> Path:
    path = target / "gpu-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gpu/__init__.py", "")
    return path


@pytest.fixture
def gcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A C compiler that copies, where the machine has none."""
    if shutil.which("gcc") is None:
        monkeypatch.setattr(making, "find_gcc", lambda: "gcc")
        monkeypatch.setattr(making, "build_shared", lambda _, source, to: shutil.copy(source, to))


def _prepare(folder: Path) -> dict[str, Any]:
    return prepare(
        folder,
        FakeCompiler(),
        build_wheel=_fake_wheel,
        build_vectors=lambda path, architectures: write(path, [], architectures, _refuse),
        say=lambda _: None,
    )


def _refuse(ptx: str, arch: str) -> bytes:
    raise CompileError(f"nothing is to be assembled for {arch}")


@pytest.mark.usefixtures("gcc")
def test_a_folder_holds_what_its_manifest_says(tmp_path: Path) -> None:
    (tmp_path / "gpu-old.whl").write_text("of an earlier version")
    manifest = _prepare(tmp_path)
    assert manifest == prepared.read_manifest(tmp_path)
    assert set(manifest["files"]) == {
        "gpu-0-py3-none-any.whl",
        "kernels.zip",
        "launchloop.so",
        "recorder.so",
        "vectors.zip",
    }
    assert manifest["architectures"] == list(ARCHITECTURES) and manifest["nvrtc"] == "13.0"
    for sm in ARCHITECTURES:
        for name in SOURCES:
            cubin = Cubin(prepared.read_kernel(tmp_path, sm, name))
            assert cubin.sm == sm and list(cubin.kernels) == [name]
            assert b".target" in prepared.read_kernel(tmp_path, sm, name, "ptx")
    target = tmp_path / "library"
    assert (prepared.unpack_wheel(tmp_path, target) / "gpu/__init__.py").exists()
    with pytest.raises(FormatError, match=r"no sm_75/store.cubin"):
        prepared.read_kernel(tmp_path, 75, "store")


@pytest.mark.usefixtures("gcc")
def test_a_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"holds no manifest.json: make it with"):
        prepared.read_manifest(tmp_path)
    _prepare(tmp_path)
    (tmp_path / "recorder.so").write_bytes(b"another")
    with pytest.raises(FormatError, match=r"recorder.so of .* is not the file of its manifest"):
        prepared.read_manifest(tmp_path)
    (tmp_path / "recorder.so").unlink()
    with pytest.raises(FormatError, match=r"lacks recorder.so"):
        prepared.read_manifest(tmp_path)


def test_a_folder_that_is_too_large_has_no_manifest(tmp_path: Path) -> None:
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(prepared.MAX_SIZE + 1)
    with pytest.raises(DeviceError, match=r"at most 31457280 may travel: large.bin 31457281"):
        prepared.write_manifest(tmp_path, {})
    assert not (tmp_path / prepared.MANIFEST).exists()


def test_missing_tools_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unsupported, match="there is no gcc: install it"):
        making.find_gcc()
    with pytest.raises(Unsupported, match=r"does not compile for sm_100, sm_120: install a newer"):
        check_architectures(FakeCompiler(80, 90), [90, 100, 120])
    with pytest.raises(Unsupported, match=r"cannot be loaded .*pip install nvidia-cuda-nvrtc"):
        load_nvrtc(tmp_path / "libnvrtc.so")


def test_nvrtc_is_looked_for_in_order(tmp_path: Path) -> None:
    wheels = tmp_path / "site/nvidia/cu13/lib"
    wheels.mkdir(parents=True)
    for name in ("libnvrtc.so.13", "libnvrtc.alt.so.13", "libnvrtc-builtins.so.13.0"):
        (wheels / name).touch()
    asked: list[str] = []

    def load(path: str) -> ctypes.CDLL:
        asked.append(path)
        raise OSError("no library")

    with pytest.raises(Unsupported, match="no library"):
        load_nvrtc(load=load, folders=[str(tmp_path / "site")])
    assert asked[0] == str(wheels / "libnvrtc-builtins.so.13.0")
    assert asked[-3:] == ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
    assert not any("alt" in path for path in asked)
    asked.clear()
    with pytest.raises(Unsupported):
        load_nvrtc(Path("/opt/libnvrtc.so"), load=load)
    assert asked == ["/opt/libnvrtc.so"]


def test_a_c_file_with_an_error_shows_the_compilers_words(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    source = tmp_path / "wrong.c"
    source.write_text("int main(void) { return nonsense; }\n")
    with pytest.raises(CompileError, match=r"wrong.c could not be built[\s\S]*nonsense"):
        making.build_shared("gcc", source, tmp_path / "wrong.so")


def test_the_wheel_holds_the_package_with_its_tables(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("setuptools")
    wheel = make_wheel(tmp_path)
    library = tmp_path / "library"
    prepared.unpack_wheel(tmp_path, library)
    assert wheel.stat().st_size < 4 << 20
    code = "import gpu.drivers.nv.rm.gpu as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(library))


def test_files_that_changed_since_are_named(tmp_path: Path) -> None:
    library, tree = tmp_path / "library", tmp_path / "tree"
    for place in (library, tree):
        (place / "gpu").mkdir(parents=True)
        for name in ("same", "changed", "gone"):
            (place / f"gpu/{name}.py").write_text(name)
    assert prepared.differing_sources(library, tree) == []
    (tree / "gpu/changed.py").write_text("new")
    (tree / "gpu/gone.py").unlink()
    assert prepared.differing_sources(library, tree) == ["gpu/changed.py", "gpu/gone.py"]
    assert prepared.differing_sources(library, tmp_path) == []


def test_a_manifest_is_readable_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    prepared.write_manifest(tmp_path, {"gpu": "1"})
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["files"]["a"]["size"] == 1 and len(content["files"]["a"]["sha256"]) == 64
