"""How model files are written and mapped, and the bar that long ones show."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpu.core.errors import InvalidValue
from gpu.core.files import atomic_file, map_file
from gpu.tensor.formats.hostbytes import BytesFile, bytes_of
from gpu.tensor.formats.progress import byte_progress


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with atomic_file(path, durable=True) as file:
        file.write(b"new ")
        assert path.read_bytes() == b"old"
        file.write(b"content")
    assert path.read_bytes() == b"new content"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyError), atomic_file(tmp_path / "a") as file:
        file.write(b"new")
        raise KeyError
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_mapping(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    mapped = map_file(tmp_path / "a")
    assert mapped.tobytes() == b"abc" and not mapped.flags.writeable
    assert map_file(tmp_path / "empty").size == 0
    os.mkfifo(tmp_path / "pipe")  # opening one would wait for a writer
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidValue, match="not a regular file"):
            map_file(path)
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "missing")


def test_bytes_as_a_file() -> None:
    content = b"first\n" + b"x" * 10_000 + b"\nlast"
    file = BytesFile(bytes_of(content))
    assert (file.readline(), file.tell()) == (b"first\n", 6)
    assert len(file.readline()) == 10_001
    assert (file.readline(), file.readline(), file.read(1 << 62)) == (b"last", b"", b"")
    assert file.seek(-4, os.SEEK_END) == len(content) - 4
    assert (file.read(2), file.read()) == (b"la", b"st")
    assert file.seek(10**12) and file.read(5) == b""
    assert file.seek(0) == 0 and file.readline(3) == b"fir"
    with pytest.raises(OSError, match="-1"):
        file.seek(-1)


@pytest.mark.parametrize(
    ("size", "terminal", "shown"),
    [(1 << 30, True, True), (1 << 30, False, False), (1 << 20, True, False)],
)
def test_bar(
    size: int,
    terminal: bool,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with byte_progress("loading", size) as advance:
        advance(size)
    assert ("loading" in capsys.readouterr().err) == shown
