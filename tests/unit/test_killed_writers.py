"""What a process leaves that is killed while it writes: the next writer clears it, and no other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu import Tensor
from gpu.core import files
from gpu.core.config import Context
from gpu.core.files import DiskCache, atomic_file, atomic_write
from gpu.nn.state import safe_load, safe_save

_PATIENCE = 60.0  # seconds
_PATTERN = ".tmp-*"

SAVE = """
import sys
from gpu import Tensor
from gpu.nn.state import safe_save
tensors = {str(i): Tensor.full((1 << 20,), float(i)).contiguous().realize() for i in range(16)}
while True:
    safe_save(tensors, sys.argv[1])
"""
WRITE = """
import sys, time
from gpu.core.files import atomic_file
with atomic_file(sys.argv[1]) as file:
    file.write(b"a part")
    file.flush()
    time.sleep(3600)
"""
CACHE = """
import sys, time
from gpu.core import files
from gpu.core.config import Context
def stop(*_):
    time.sleep(3600)
files.os.replace = stop
with Context(CACHE_DIR=sys.argv[1]):
    files.DiskCache("kernels").put("key", b"data")
"""


def temporaries(folder: Path) -> list[Path]:
    """The unfinished files below a folder, in which a process may be writing."""
    return sorted(folder.rglob(_PATTERN))


def is_written(folder: Path) -> bool:
    """Whether one of them has content, and so its lock."""
    for path in temporaries(folder):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return True
    return False


@contextlib.contextmanager
def writer(code: str, path: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in the middle of writing; it is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", code, os.fspath(path)])
    try:
        deadline = time.monotonic() + _PATIENCE
        while not is_written(folder):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.wait()


def kill_in_the_middle(code: str, path: Path, folder: Path) -> None:
    """Until a process was killed that leaves an unfinished file, as most are."""
    for _ in range(20):
        with writer(code, path, folder):
            pass
        if temporaries(folder):
            return
    pytest.fail("no process was killed while it wrote")


def test_the_next_save_clears_what_killed_ones_left(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    kill_in_the_middle(SAVE, path, tmp_path)
    safe_save({"x": Tensor([1.0, 2.0])}, path)
    assert list(tmp_path.iterdir()) == [path]
    assert safe_load(path)["x"].tolist() == [1.0, 2.0]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with writer(WRITE, theirs, tmp_path):
        unfinished = temporaries(tmp_path)
        atomic_write(ours, b"1")
        assert temporaries(tmp_path) == unfinished and len(unfinished) == 1
    atomic_write(ours, b"2")
    assert list(tmp_path.iterdir()) == [ours]


def test_what_this_process_writes_is_left_alone(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "outer") as outer:
        outer.write(b"outer")
        atomic_write(tmp_path / "inner", b"inner")
    assert (tmp_path / "outer").read_bytes() == b"outer"
    assert {path.name for path in tmp_path.iterdir()} == {"outer", "inner"}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_copy_of_a_living_process_keeps_the_file(tmp_path: Path) -> None:
    """Numbers of processes are given again, and a writer may have forked: locks know."""
    target = tmp_path / "file"
    with atomic_file(target) as file:
        file.write(b"whole")
        pid = os.fork()
        if not pid:
            try:
                atomic_write(tmp_path / "of the child", b"")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert (tmp_path / "of the child").exists()
    assert target.read_bytes() == b"whole"


def test_evicting_clears_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setattr(files, "_PUTS_PER_EVICTION", 1)
    with Context(CACHE_DIR=folder):
        cache = DiskCache("kernels", limit=200)
        with writer(CACHE, folder, tmp_path):
            unfinished = temporaries(folder)
            os.utime(unfinished[0], (0, 0))  # the oldest of all
            for number in range(9):
                cache.put(str(number), bytes(100))
            assert temporaries(folder) == unfinished and len(unfinished) == 1
        cache.put("last", b"")
        assert temporaries(folder) == [] and cache.get("last") == b""


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    ours = f"{_PATTERN[:-1]}gpu-0123456789abcdef"
    kept = {".tmp-0123456789abcdef", f"{ours}0", f"x{ours}", "model"}
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a link").symlink_to("model")
    (tmp_path / ours).symlink_to("model")
    fifo = ours[:-1] + "0"
    os.mkfifo(tmp_path / fifo)
    atomic_write(tmp_path / "new", b"")
    found = {path.name for path in tmp_path.iterdir()}
    assert found == kept | {"a link", ours, fifo, "new"}


def test_without_locks_files_are_written_and_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".tmp-gpu-0123456789abcdef"
    left.write_bytes(b"somebody's")

    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    atomic_write(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data" and left.exists()


def test_a_file_that_is_cleared_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock: Callable[[int, int], None] = fcntl.flock
    cleared: list[Path] = []

    def late(descriptor: int, operation: int) -> None:
        if not cleared:
            cleared.extend(temporaries(tmp_path))
            monkeypatch.setattr(fcntl, "flock", flock)
            files._clear_dead(os.fspath(tmp_path))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    atomic_write(tmp_path / "file", b"data")
    assert len(cleared) == 1 and not cleared[0].exists()
    assert (tmp_path / "file").read_bytes() == b"data"
    assert len(list(tmp_path.iterdir())) == 1


CROWD = """
import sys
from gpu.core.files import atomic_write, read_bytes
for number in range(300):
    atomic_write(f"{sys.argv[1]}/{number % 3}", str(number).encode() * 100)
    read_bytes(f"{sys.argv[1]}/{number % 3}")
"""


def test_many_writers_of_one_folder(tmp_path: Path) -> None:
    crowd = [subprocess.Popen([sys.executable, "-c", CROWD, os.fspath(tmp_path)]) for _ in range(4)]
    assert [process.wait(_PATIENCE) for process in crowd] == [0] * 4
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
