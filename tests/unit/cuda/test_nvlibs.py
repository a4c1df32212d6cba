"""Where NVIDIA's libraries are looked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu.compiler.toolchain import nvlibs
from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.compiler.toolchain.nvlibs import NvLibrary, find_library
from gpu.core.config import Context
from gpu.core.errors import FormatError, Unsupported


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of packages, the only one; CUDA and what the loader knows are not there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(nvlibs, "_SYSTEM_FOLDERS", (str(tmp_path / "cuda*" / "lib64"),))
    monkeypatch.setattr(nvlibs, "_MAJORS", ("0",))
    nvlibs._search.cache_clear()
    yield tmp_path
    nvlibs._search.cache_clear()


def put(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def package(site: Path, name: str, version: str, *files: str) -> None:
    for file in files:
        put(site / file)
    record = "\n".join(f"{file},sha256=x,1" for file in files)
    put(site / f"{name}-{version}.dist-info" / "RECORD", record.encode())


def test_the_newest_package_by_its_own_list(site: Path) -> None:
    package(
        *(site, "nvidia_cuda_nvrtc_cu12", "12.9.86"),
        *(
            "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
            "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        ),
        "nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12",
    )
    package(site, "nvidia_cuda_nvrtc", "13.10.1", "nvidia/cu13/lib/libnvrtc.so.13")
    package(site, "nvidia_cuda_runtime", "99.1", "nvidia/x/lib/libnvrtc.so.99")
    found = find_library("nvrtc")
    assert found == NvLibrary("nvrtc", str(site / "nvidia/cu13/lib/libnvrtc.so.13"), "13.10.1")


def test_packages_without_lists_then_cuda(site: Path) -> None:
    cuda = put(site / "cuda-13.0/lib64/libnvrtc.so.13.0.88")
    assert find_library("nvrtc") == NvLibrary("nvrtc", str(cuda), "13.0.88")
    nvlibs._search.cache_clear()
    beside = put(site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
    assert find_library("nvrtc") == NvLibrary("nvrtc", str(beside), "12")


def test_a_setting_wins(site: Path) -> None:
    package(site, "nvidia_cuda_nvrtc_cu12", "12.9.86", "nvidia/lib/libnvrtc.so.12")
    with Context(NVRTC_LIBRARY="/elsewhere/libnvrtc.so.12.4.1"):
        found = find_library("nvrtc")
        assert found == NvLibrary("nvrtc", "/elsewhere/libnvrtc.so.12.4.1", "12.4.1")
        with pytest.raises(Unsupported, match=r"libnvrtc\.so\.12\.4\.1 cannot be loaded"):
            found.load()


def test_a_missing_library_says_how_to_get_it(site: Path) -> None:
    del site
    with pytest.raises(Unsupported) as caught:
        find_library("nvrtc")
    text = str(caught.value)
    assert "pip install nvidia-cuda-nvrtc-cu12" in text and "NVRTC_LIBRARY" in text
    assert "libnvrtc.so.0" in text
    with pytest.raises(Unsupported, match="did you mean nvJitLink"):
        find_library("nvjitlink")


def test_identities_tell_releases_apart(tmp_path: Path) -> None:
    one = put(tmp_path / "a" / "libnvrtc.so.12", b"1")
    other = put(tmp_path / "b" / "libnvrtc.so.12", b"22")
    identities = {NvLibrary("nvrtc", str(p), "12").identity for p in (one, other)}
    assert len(identities) == 2


def test_functions_by_the_names_they_are_exported_under(
    tmp_path: Path, need: Callable[[str], None]
) -> None:
    """Any shared object has dynamic symbols: here one for a GPU of another maker."""
    need("llvmlite")
    names = ["__nvJitLinkCreate_13_5", "__nvJitLinkCreate_13_10", "__nvJitLinkCreateX_13_11"]
    kernels = "\n".join(f"define amdgpu_kernel void @{n}() {{ ret void }}" for n in names)
    path = put(tmp_path / "libnvJitLink.so.13", AMDCompiler("gfx1100").compile(kernels))
    library = NvLibrary("nvJitLink", str(path), "13")
    assert library.function("nvJitLinkCreate") == "__nvJitLinkCreate_13_10"
    with pytest.raises(Unsupported, match="no function nvJitLinkDestroy"):
        library.function("nvJitLinkDestroy")
    with pytest.raises(FormatError):
        NvLibrary("nvJitLink", str(put(tmp_path / "libx.so", b"text")), "").symbols()
    with pytest.raises(Unsupported, match="NVJITLINK_LIBRARY"):
        NvLibrary("nvJitLink", "libnvJitLink.so.13", "").symbols()
