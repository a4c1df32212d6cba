from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu.core import files
from gpu.core.config import Context
from gpu.core.errors import InvalidValue
from gpu.core.files import DiskCache, atomic_write, cache_dir, read_bytes


@pytest.fixture
def folder(tmp_path: Path) -> object:
    with Context(CACHE_DIR=tmp_path / "cache"):
        yield tmp_path / "cache"


def test_atomic_write_replaces_and_is_private(tmp_path: Path) -> None:
    target = tmp_path / "file"
    atomic_write(target, b"old")
    atomic_write(target, b"new")
    assert read_bytes(target) == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    atomic_write(target, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        atomic_write(target, b"new")
    assert os.listdir(tmp_path) == ["file"] and read_bytes(target) == b"old"


def test_cache_dir_is_made_private(folder: Path) -> None:
    assert cache_dir() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    with Context(CACHE=0):
        assert cache_dir() is None


def make_writable_by_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(make_writable_by_others, "chmod go-w"), (Path.touch, "cannot be made")],
)
def test_unsafe_folders_are_refused_with_one_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path], None],
    reason: str,
) -> None:
    make(tmp_path / "bad")
    with Context(CACHE_DIR=tmp_path / "bad"), caplog.at_level(logging.WARNING):
        cache = DiskCache("kernels")
        cache.put("key", b"data")
        assert cache.get("key") is None and cache_dir() is None
    assert [reason in record.message for record in caplog.records] == [True]


def test_another_users_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    assert cache_dir() is None


def test_cache_keeps_and_replaces(folder: Path) -> None:
    cache, other = DiskCache("kernels"), DiskCache("plans")
    assert cache.get("a") is None
    cache.put("a", b"one")
    cache.put("b/../:ü", b"")
    assert (cache.get("a"), cache.get("b/../:ü"), other.get("a")) == (b"one", b"", None)
    cache.put("a", b"two")
    assert DiskCache("kernels").get("a") == b"two"


def entry(folder: Path) -> Path:
    (path,) = (folder / "kernels").iterdir()
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 60), bit=st.integers(0, 7), truncate=st.booleans())
def test_a_damaged_entry_is_a_miss_and_is_removed(
    folder: Path, cut: int, bit: int, truncate: bool
) -> None:
    cache = DiskCache("kernels")
    cache.put("key", b"payload of 25 bytes......")
    good = bytearray(entry(folder).read_bytes())
    assert len(good) == 61
    good[cut] ^= 1 << bit
    entry(folder).write_bytes(good[:cut] if truncate else good)
    assert cache.get("key") is None
    assert list((folder / "kernels").iterdir()) == []


def test_an_entry_under_another_keys_name_is_a_miss(folder: Path) -> None:
    cache = DiskCache("kernels")
    cache.put("a", b"of a")
    of_a = entry(folder)
    stored = of_a.read_bytes()
    of_a.unlink()
    cache.put("b", b"of b")
    entry(folder).write_bytes(stored)
    assert cache.get("b") is None


def test_full_disk_is_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache = DiskCache("kernels")
    with caplog.at_level(logging.WARNING):
        cache.put("a", b"1")
        cache.put("b", b"2")
    assert cache.get("a") is None
    assert len(caplog.records) == 1 and "No space" in caplog.text


def test_an_unreadable_entry_is_a_miss(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache("kernels")
    cache.put("a", b"1")
    path = entry(folder)
    path.unlink()
    path.mkdir()
    assert cache.get("a") is None
    assert "cannot be read" in caplog.text


def test_the_least_recently_used_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PUTS_PER_EVICTION", 1)
    cache = DiskCache("kernels", limit=1000)
    for number in range(8):
        cache.put(str(number), bytes(100))
    for age, path in enumerate(sorted((folder / "kernels").iterdir())):
        os.utime(path, (1000 + age, 1000 + age))
    assert cache.get("0") is not None  # used just now
    cache.put("8", bytes(100))
    cache.put("9", bytes(100))
    left = [str(n) for n in range(10) if cache.get(str(n)) is not None]
    assert {"0", "8", "9"} <= set(left) and len(left) < 10
    cache.put("huge", bytes(1000))
    assert cache.get("huge") is None
    assert sum(path.stat().st_size for path in (folder / "kernels").iterdir()) <= 1000


@pytest.mark.parametrize("bad", ["", "../up", "A", ".hidden", "a/b", "x" * 65])
def test_bad_namespaces(bad: str) -> None:
    with pytest.raises(InvalidValue, match="namespace"):
        DiskCache(bad)
