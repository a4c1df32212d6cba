"""The operating system behind the protocol: real files of this machine, and typed errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import inspect
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pytest

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, InvalidValue, TransportError
from gpu.core.ref import Ref
from gpu.transport.access import hint_for
from gpu.transport.files import Files
from gpu.transport.os import Os, RealOs
from gpu.transport.replay import ReplayOs
from gpu.transport.traced import TracedOs
from gpu.transport.world import World, real_world

PAGE = hostmem.page_size


@pytest.mark.parametrize("implementation", [RealOs, TracedOs, ReplayOs])
def test_implementations_have_the_protocols_methods(implementation: type) -> None:
    methods = [name for name in (*vars(Files), *vars(Os)) if not name.startswith("_")]
    assert len(methods) == 18
    for name in methods:
        wanted = inspect.signature(getattr(Os, name))
        assert inspect.signature(getattr(implementation, name)) == wanted, name


def _as_protocol(real: RealOs, traced: TracedOs, replay: ReplayOs) -> list[Os]:
    """For the type checker: each one is an `Os`."""
    return [real, traced, replay]


def test_the_real_world_has_this_os() -> None:
    world = real_world()
    assert isinstance(world, World) and isinstance(world.os, RealOs)
    assert world.waiter.now_ns() <= world.waiter.now_ns()


def test_ioctl_changes_a_bytearray_in_place() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"12345")
    argument = bytearray(4)
    assert RealOs().ioctl(reader, termios.FIONREAD, argument) == 0
    assert argument == (5).to_bytes(4, "little")
    os.close(reader)
    os.close(writer)


class _WindowSize(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint16) for name in ("rows", "columns", "width", "height")]


def test_ioctl_takes_structures_and_long_arguments() -> None:
    system = RealOs()
    fd = system.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    system.ioctl(fd, termios.TIOCSWINSZ, _WindowSize(24, 80, 1, 2))
    size = _WindowSize()
    system.ioctl(fd, termios.TIOCGWINSZ, size)
    assert (size.rows, size.columns, size.width, size.height) == (24, 80, 1, 2)
    long = bytearray(b"\xaa" * 5000)  # more than fcntl.ioctl would pass on in place
    system.ioctl(fd, termios.TIOCGWINSZ, long)
    assert long == struct.pack("4H", 24, 80, 1, 2) + b"\xaa" * 4992
    array = (ctypes.c_uint16 * 4)()
    system.ioctl(fd, termios.TIOCGWINSZ, array)
    assert list(array) == [24, 80, 1, 2]
    system.close(fd)


def test_ioctl_follows_pointers() -> None:
    """SIOCGIFCONF fills a buffer that the argument points at (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        buffer = (ctypes.c_char * 400)()
        argument = bytearray(struct.pack("i4xQ", 400, ctypes.addressof(buffer)))
        RealOs().ioctl(sock.fileno(), 0x8912, argument, [Ref(8, count_offset=0)])
        (used,) = struct.unpack_from("i", argument)
        assert used < 400 and used % 40 == 0


def test_ioctl_errors_name_request_path_and_errno() -> None:
    system = RealOs()
    fd = system.open("/dev/null", os.O_RDWR)
    with pytest.raises(TransportError, match=r"IOR 'K' 0x01, 8 bytes\) on /dev/null.*ENOTTY") as e:
        system.ioctl(fd, 0x80084B01, bytearray(8))
    assert e.value.errno == errno.ENOTTY
    with pytest.raises(TransportError, match="ioctl 0x19 on /dev/null"):  # UVM's kind of number
        system.ioctl(fd, 0x19, bytearray(8))
    with pytest.raises(InvalidValue, match="0xffffffff"):
        system.ioctl(fd, 1 << 32, bytearray(8))
    system.close(fd)
    with pytest.raises(TransportError, match=f"on fd {fd}: .*EBADF"):
        system.ioctl(fd, 0x19, bytearray(8))


def test_interrupted_ioctls_are_made_again() -> None:
    answers = [errno.EINTR, errno.EINTR, 0]

    def interrupted(fd: int, request: int, memory: ctypes.Array[ctypes.c_char]) -> int:
        number = answers.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 7

    system = RealOs()
    system._ioctl = interrupted
    assert system.ioctl(0, 1, bytearray(8)) == 7
    assert not answers


def test_descriptors_do_not_survive_exec() -> None:
    system = RealOs()
    fd = system.open("/dev/null", os.O_RDONLY)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    system.close(fd)
    with pytest.raises(TransportError, match=f"closing fd {fd}"):
        system.close(fd)


def test_mmap_maps_files_and_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE) + b"second page".ljust(PAGE, b"\0"))
    system = RealOs()
    fd = system.open(str(path), os.O_RDWR)
    address = system.mmap(fd, PAGE, hostmem.PROT_READ, hostmem.MAP_SHARED, PAGE)
    assert ctypes.string_at(address, 11) == b"second page"
    memory = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_FIXED
    assert system.mmap(-1, PAGE, hostmem.PROT_READ, memory, 0, address) == address
    assert ctypes.string_at(address, PAGE) == bytes(PAGE)
    system.munmap(address, PAGE)
    with pytest.raises(TransportError, match="file: mapping") as caught:
        system.mmap(fd, PAGE, hostmem.PROT_READ, 0)
    assert caught.value.errno == errno.EINVAL
    system.close(fd)


def test_files(tmp_path: Path) -> None:
    system = RealOs()
    path = str(tmp_path / "b")
    assert not system.exists(path)
    with pytest.raises(TransportError, match="kernel driver loaded") as caught:
        system.write_file(path, b"x")
    assert caught.value.errno == errno.ENOENT
    (tmp_path / "b").touch()
    (tmp_path / "a").touch()
    system.write_file(path, b"content")
    assert system.read_file(path) == b"content"
    assert system.list_dir(str(tmp_path)) == ["a", "b"]
    assert system.exists(path)
    for call in (system.read_file, system.list_dir):
        with pytest.raises(TransportError, match="missing"):
            call(str(tmp_path / "missing"))
    with pytest.raises(TransportError, match="is the device there"):
        system.open(str(tmp_path / "missing"), os.O_RDWR)


def test_a_file_that_takes_nothing_is_an_error() -> None:
    with pytest.raises(TransportError, match="/dev/full") as caught:
        RealOs().write_file("/dev/full", b"x")
    assert caught.value.errno == errno.ENOSPC


def _status(mode: int, gid: int = 4711) -> os.stat_result:
    return os.stat_result((stat.S_IFCHR | mode, 0, 0, 1, 0, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "flags", "member", "words"),
    [
        (0o660, os.O_RDWR, False, "sudo usermod -aG render $USER` and log in again"),
        (0o660, os.O_RDWR, True, "you are in its group render, so something else"),
        (0o640, os.O_RDWR, False, "only its owner may (crw-r-----, group render)"),
        (0o640, os.O_RDONLY, False, "sudo usermod -aG render"),
        (0o620, os.O_WRONLY, False, "sudo usermod -aG render"),
        (0o600, os.O_RDONLY, True, "only its owner may (crw-------, group render)"),
        (0o666, os.O_RDWR, True, "something else forbids it"),
        (0o606, os.O_RDWR, False, "its permissions allow it"),
    ],
)
def test_denied_access_comes_with_what_helps(
    mode: int, flags: int, member: bool, words: str
) -> None:
    assert words in hint_for(_status(mode), flags, "render", member)


def test_nobody_is_told_to_join_the_group_root() -> None:
    assert "udev rule" in hint_for(_status(0o660, 0), os.O_RDWR, "root", False)


_DENIED = """
import os, sys
from gpu.core.errors import AccessDenied
from gpu.transport.os import RealOs
os.setgroups([]); os.setgid(65534); os.setuid(65534)
path, system = sys.argv[1], RealOs()
for call in (lambda: system.open(path, os.O_RDWR), lambda: system.read_file(path)):
    try: call()
    except AccessDenied as error: print(error.hint)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become someone else")
def test_real_files_are_denied() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o711)
        path = Path(folder) / "node"
        path.touch()
        path.chmod(0o660)
        os.chown(path, 0, 4711)
        done = subprocess.run(
            [sys.executable, "-c", _DENIED, str(path)], capture_output=True, text=True, check=True
        )
    assert done.stdout.count("sudo usermod -aG 4711 $USER") == 2


def test_access_denied_is_no_transport_error() -> None:
    """What is missing and what is forbidden are told apart by their types."""
    assert not issubclass(AccessDenied, TransportError)


def test_registers_of_an_open_file(tmp_path: Path) -> None:
    system, path = RealOs(), tmp_path / "registers"
    path.write_bytes(bytes(range(256)) * 64)
    fd = system.open(str(path), os.O_RDWR)
    for offset, size in ((0, 4 * PAGE), (PAGE, 8), (PAGE + 0x104, 0x20)):
        window = system.window(fd, size, offset)
        assert window.size == size
        assert window.read(4, 4) == int.from_bytes(path.read_bytes()[offset + 4 :][:4], "little")
        window.write(0, 4, 0xC0FFEE00 + size % 256)
        assert path.read_bytes()[offset : offset + 4] == window.load(0, 4)
        system.close_window(window)
    with pytest.raises(KeyError):
        system.close_window(window)
    with pytest.raises(InvalidValue, match="at least 1"):
        system.window(fd, 0, 0)
    system.close(fd)
    with pytest.raises(TransportError, match="Bad file descriptor"):
        system.window(fd, 8, 0)


def test_bytes_of_an_open_file(tmp_path: Path) -> None:
    system, path = RealOs(), tmp_path / "config"
    path.write_bytes(b"0123456789")
    fd = system.open(str(path), os.O_RDWR)
    system.pwrite(fd, b"ab", 4)
    assert system.pread(fd, 4, 3) == b"3ab6" and system.pread(fd, 4, 8) == b"89"
    assert path.read_bytes() == b"0123ab6789"
    system.close(fd)
    for use in (lambda: system.pread(fd, 1, 0), lambda: system.pwrite(fd, b"1", 0)):
        with pytest.raises(TransportError) as caught:
            use()
        assert caught.value.errno == errno.EBADF
    full = system.open("/dev/full", os.O_RDWR)
    with pytest.raises(TransportError, match="writing 1 bytes at 0x0 of /dev/full"):
        system.pwrite(full, b"1", 0)
    system.close(full)


def test_events_wake_who_waits() -> None:
    system = RealOs()
    first, second = system.eventfd(), system.eventfd()
    assert system.wait([first, second], 0) == [] and system.take_events(first) == 0
    os.eventfd_write(second, 3)
    assert system.wait([first, second], 10**9) == [second]
    assert system.take_events(second) == 3 and system.take_events(second) == 0
    os.eventfd_write(first, 1)
    os.eventfd_write(second, 1)
    assert system.wait([second, first], -1) == [second, first]
    system.close(first)
    system.close(second)
    with pytest.raises(TransportError, match="not open"):
        system.wait([first], 0)


def test_one_has_the_lock_of_a_file(tmp_path: Path) -> None:
    system, path = RealOs(), str(tmp_path / "resource0")
    Path(path).touch()
    first, second = (system.open(path, os.O_RDWR) for _ in range(2))
    system.lock(first)
    system.lock(first)
    with pytest.raises(TransportError, match="resource0") as caught:
        system.lock(second)
    assert caught.value.errno == errno.EWOULDBLOCK
    system.close(first)
    system.lock(second)
    system.close(second)
