"""Zip and tar archives as tensors of bytes."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from gpu.core.errors import FormatError, GpuError
from gpu.nn.state import tar_extract, zip_extract
from gpu.runtime.execute import storage

FILES = {"a.txt": b"hello", "folder/b.bin": bytes(range(256)) * 40, "empty": b""}


Compression = Literal["", "gz", "bz2", "xz"]


def _tar(files: dict[str, bytes], compression: Compression = "") -> bytes:
    target = io.BytesIO()
    modes: dict[Compression, Literal["w:", "w:gz", "w:bz2", "w:xz"]]
    modes = {"": "w:", "gz": "w:gz", "bz2": "w:bz2", "xz": "w:xz"}
    with tarfile.open(fileobj=target, mode=modes[compression]) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("link")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(folder)
        archive.addfile(link)
    return target.getvalue()


def _zip(files: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.mkdir("folder")
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_tar(tmp_path: Path, compression: Compression) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(_tar(FILES, compression))
    found = tar_extract(path)
    assert {name: tensor.numpy().tobytes() for name, tensor in found.items()} == FILES


@pytest.mark.parametrize("method", METHODS)
def test_zip(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(_zip(FILES, method))
    found = zip_extract(path)
    assert {name: tensor.numpy().tobytes() for name, tensor in found.items()} == FILES
    content = storage(found["a.txt"]._node)._owner
    assert isinstance(content, np.ndarray)
    is_view = isinstance(content.base, np.ndarray)  # of the file
    assert is_view == (method == zipfile.ZIP_STORED)


BAD_NAMES = ["/etc/passwd", "../up", "a/../../up", "..\\up", "C:/x", "C:\\x"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(("make", "extract"), [(_tar, tar_extract), (_zip, zip_extract)])
def test_names_that_lead_out_are_refused(
    tmp_path: Path,
    name: str,
    make: Callable[[dict[str, bytes]], bytes],
    extract: Callable[[Path], object],
) -> None:
    (tmp_path / "a").write_bytes(make({name: b"x"}))
    with pytest.raises(FormatError, match="leads out"):
        extract(tmp_path / "a")


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_tar_bombs_stop_at_the_limit(tmp_path: Path, compression: Compression) -> None:
    (tmp_path / "a").write_bytes(_tar({"zeros": bytes(20 << 20)}, compression))
    with pytest.raises(FormatError, match="limit="):
        tar_extract(tmp_path / "a", limit=1 << 20)
    assert tar_extract(tmp_path / "a", limit=21 << 20)["zeros"].numel() == 20 << 20


def test_zip_bombs_stop_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(
        _zip({"a": bytes(700_000), "b": bytes(700_000)}, zipfile.ZIP_DEFLATED)
    )
    with pytest.raises(FormatError, match=r"'b' claims 700,000 .* 1,000,000"):
        zip_extract(tmp_path / "a", limit=1_000_000)


def test_zip_that_lies_about_sizes_is_refused(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = bytearray(_zip({"a": b"x" * 1000}, method))
        entry = data.rindex(b"PK\x01\x02")
        data[entry + 24 : entry + 28] = (50_000).to_bytes(4, "little")
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FormatError, match=r"'a'"):
            zip_extract(tmp_path / "a")


def test_zip_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "a", "w") as file:
        file.writestr("a", b"1")
        file.writestr("a", b"2")
    with pytest.raises(FormatError, match="'a' twice"):
        zip_extract(tmp_path / "a")


def test_zip_with_an_empty_name_is_refused(tmp_path: Path) -> None:
    data = _zip({"a": b"1"}).replace(b"a", b"\0")  # which ends the name
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(FormatError, match="named ''"):
        zip_extract(tmp_path / "a")


def test_tar_with_a_negative_size_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size = -512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    (tmp_path / "a").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(FormatError, match=r"-512|invalid offset"):  # from Python 3.13 on tarfile's
        tar_extract(tmp_path / "a")


@pytest.mark.parametrize(
    ("original", "extract"),
    [
        (_tar(FILES), tar_extract),
        (_tar(FILES, "gz"), tar_extract),
        (_tar(FILES, "xz"), tar_extract),
        (_zip(FILES), zip_extract),
        (_zip(FILES, zipfile.ZIP_DEFLATED), zip_extract),
    ],
    ids=["tar", "tar.gz", "tar.xz", "stored zip", "deflated zip"],
)
def test_random_damage_raises_nothing_else(
    tmp_path: Path, original: bytes, extract: Callable[[Path], object]
) -> None:
    generator, path, refused = random.Random(3), tmp_path / "a", 0
    for _ in range(250):
        data = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            if generator.random() < 0.7:
                data[at] = generator.randrange(256)
            else:
                del data[at : at + generator.randint(1, 400)]
        path.write_bytes(data)
        try:
            extract(path)
        except GpuError:
            refused += 1
    assert refused > 10
