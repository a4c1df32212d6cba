"""Firmware is found by name and hash, from hostile files too."""

from __future__ import annotations

import contextlib
import hashlib
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest

from gpu.cli.main import main
from gpu.core import firmware
from gpu.core.config import Context
from gpu.core.errors import FirmwareError, FormatError, Unsupported
from gpu.core.firmware import Wanted

DATA = b"\x7ffirmware" * 100
NAME = "nvidia/gh100/gsp/fmc-570.144.bin"


def wanted(data: bytes = DATA, name: str = NAME) -> Wanted:
    return Wanted(name, (hashlib.sha256(data).hexdigest(),), "firmware-made-up")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FIRMWARE_DIR and the cache are empty folders, and the system has nothing."""
    monkeypatch.setattr(firmware.os, "uname", lambda: type("U", (), {"release": "none"}))
    with Context(FIRMWARE_DIR=str(tmp_path / "own"), CACHE_DIR=tmp_path / "cache"):
        yield tmp_path / "own"


def put(folder: Path, data: bytes, ending: str = "") -> Path:
    path = folder / f"{NAME}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_it_is_found_by_what_it_is(folders: Path) -> None:
    with pytest.raises(FirmwareError, match=r"install firmware-made-up.*gpu fw add"):
        firmware.load(wanted())
    put(folders, DATA)
    assert firmware.load(wanted()) == DATA


def test_compressed_files(folders: Path) -> None:
    put(folders, lzma.compress(DATA), ".xz")
    assert firmware.load(wanted()) == DATA
    put(folders, lzma.compress(DATA)[:-9], ".xz")
    with pytest.raises(FirmwareError, match="cut off"):
        firmware.load(wanted())
    put(folders, b"no xz", ".xz")
    with pytest.raises(FirmwareError, match=r"damaged \.xz"):
        firmware.load(wanted())


def test_zstandard_where_there_is_a_module(folders: Path) -> None:
    try:
        import zstandard
    except ImportError:
        put(folders, b"anything", ".zst")
        with pytest.raises(FirmwareError, match=r"pip install zstandard"):
            firmware.load(wanted())
        return
    put(folders, zstandard.compress(DATA), ".zst")
    assert firmware.load(wanted()) == DATA
    put(folders, b"no zst", ".zst")
    with pytest.raises(FirmwareError, match=r"damaged \.zst"):
        firmware.load(wanted())


def test_another_release_is_refused_until_it_is_trusted(folders: Path) -> None:
    put(folders, b"other")
    sha256 = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(FirmwareError, match=rf"unknown SHA-256 {sha256}.*gpu fw trust {NAME}"):
        firmware.load(wanted())
    assert main(["fw", "check", NAME]) == 1
    assert main(["fw", "trust", NAME]) == 0
    assert firmware.load(wanted()) == b"other"
    assert main(["fw", "check", NAME]) == 0
    with pytest.raises(FirmwareError, match="no file amdgpu/x"):
        firmware.trust(wanted(name="amdgpu/x"))


def test_the_right_file_is_taken_past_a_wrong_one(folders: Path, tmp_path: Path) -> None:
    put(folders, b"other")
    put(tmp_path / "cache/firmware", DATA)
    assert firmware.load(wanted()) == DATA


@pytest.mark.parametrize("text", ["", "[]", "{", '{"abc": "x"}', '{"' + "0" * 64 + '": 3}'])
def test_a_damaged_list_of_trust(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cache/firmware/trusted.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(FormatError, match="remove it"):
        firmware.trusted()


def package(files: dict[str, bytes], ending: str = ".xz", data: bytes | None = None) -> bytes:
    """A Debian package: deb(5)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    inner = lzma.compress(buffer.getvalue()) if ending == ".xz" else buffer.getvalue()
    members = {"debian-binary": b"2.0\n", f"data.tar{ending}": data or inner}
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


@pytest.mark.parametrize("ending", ["", ".xz"])
@pytest.mark.parametrize("root", ["./usr/lib/firmware/", "./lib/firmware/"])
def test_a_package_is_added(tmp_path: Path, root: str, ending: str) -> None:
    path = tmp_path / "firmware.deb"
    path.write_bytes(package({f"{root}{NAME}": DATA, "./usr/share/doc/x": b"no"}, ending))
    assert firmware.add(path) == [NAME]
    assert firmware.load(wanted()) == DATA


def test_packages_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "firmware.deb"
    good = package({f"./lib/firmware/{NAME}": DATA})
    for data, text in (
        (b"", "no Debian package"),
        (good[:40], "no member"),
        (good[:-30], "cut off"),
        (package({"./usr/share/x": b"1"}), "no package of firmware"),
        (package({"./lib/firmware/../../x": b"1"}), "leads elsewhere"),
        (package({}, data=lzma.compress(b"no tar" * 200)), r"data\.tar"),
        (package({}, data=b"no xz"), "damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=text):
            firmware.add(path)
    path.write_bytes(package({f"./lib/firmware/{NAME}": DATA}, ".br"))
    with pytest.raises(Unsupported, match=r"data\.tar\.br"):
        firmware.add(path)
    assert not (tmp_path / "x").exists() and not (tmp_path / "cache/x").exists()


def test_damaged_packages_raise_only_what_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    good = bytearray(package({f"./lib/firmware/{NAME}": DATA}, ""))
    path = tmp_path / "firmware.deb"
    for _ in range(300):
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        path.write_bytes(data[: int(rng.integers(len(data) // 2, len(data) + 1))])
        with contextlib.suppress(FormatError, Unsupported):
            firmware.add(path)


def test_a_list_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fw", "list"]) == 0
    told = capsys.readouterr().out
    assert NAME in told and "/lib/firmware/updates" in told
    assert main(["fw", "check", "nothing"]) == 1
    assert "gpu fw list" in capsys.readouterr().err
