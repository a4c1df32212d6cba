"""The process that holds memory until a card without an IOMMU has stopped: a real one, on files."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu.core import hostmem
from gpu.core.errors import TransportError
from gpu.transport.pci.pinned import ProcessGuard

PAGE = hostmem.page_size
CHILD = """
import os, sys, time
from gpu.core import hostmem
from gpu.transport.pci.pinned import ProcessGuard
config, lock = (os.open(path, os.O_RDWR) for path in sys.argv[1:])
import fcntl
fcntl.flock(lock, fcntl.LOCK_EX)
guard = ProcessGuard(config, lock)
guard.hold(hostmem.memfd("held", hostmem.page_size))
print(guard._process.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Config space of a function with PCI Express, which is a bus master."""
    data = bytearray(256)
    data[4], data[0x34], data[0x40:0x44] = 0x06, 0x40, bytes((1, 0x60, 0, 0))
    data[0x60:0x62] = bytes((0x10, 0))
    path = tmp_path / "config"
    path.write_bytes(data)
    (tmp_path / "resource0").touch()
    return path


def _open(config: Path) -> tuple[int, int]:
    return os.open(config, os.O_RDWR), os.open(config.with_name("resource0"), os.O_RDWR)


def _is_locked(config: Path) -> bool:
    with open(config.with_name("resource0"), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_closing_ends_bus_mastering(config: Path) -> None:
    fds = _open(config)
    fcntl.flock(fds[1], fcntl.LOCK_EX)
    guard = ProcessGuard(*fds)
    memory = hostmem.memfd("held", 4 * PAGE)
    guard.hold(memory)
    assert config.read_bytes()[4] == 0x06
    guard.close()
    assert config.read_bytes()[4] == 0x02
    for fd in (*fds, memory):
        os.close(fd)
    assert not _is_locked(config)


@pytest.mark.parametrize("pending", [False, True])
def test_a_killed_process_leaves_memory_held_until_then(config: Path, pending: bool) -> None:
    if pending:  # a transaction that never ends: the guard waits for its bound
        data = bytearray(config.read_bytes())
        data[0x6A] = 0x20
        config.write_bytes(data)
    command = [sys.executable, "-c", CHILD, str(config), str(config.with_name("resource0"))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    guard = int(child.stdout.readline())
    maps = Path(f"/proc/{guard}/maps").read_text()
    assert "memfd:held" in maps and _is_locked(config)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 20
    while _is_locked(config):
        assert time.monotonic() < deadline, "the guard does not end"
        time.sleep(0.01)
    assert config.read_bytes()[4] == 0x02


def test_what_a_guard_cannot_hold_is_told(config: Path) -> None:
    fds = _open(config)
    guard = ProcessGuard(*fds)
    read_end, write_end = os.pipe()
    with pytest.raises(TransportError, match="guard process ended"):
        guard.hold(read_end)
    assert config.read_bytes()[4] == 0x02
    with pytest.raises(TransportError, match="ended with 1"):
        guard.close()
    for fd in (*fds, read_end, write_end):
        os.close(fd)
