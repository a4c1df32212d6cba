"""Recording a session and running it again without the files, and naming what differs."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, InvalidValue, OutOfMemory, TransportError
from gpu.core.ref import MAX_BLOCKS, Argument, Ref, argument_memory, follow
from gpu.core.trace import Recorder, read_trace
from gpu.core.traceevent import (
    Access,
    Event,
    Exists,
    Failure,
    Ioctl,
    Map,
    Memory,
    Open,
    Unmap,
)
from gpu.transport.os import Os, RealOs
from gpu.transport.reissue import differing_answers, first_difference
from gpu.transport.replay import ReplayOs
from gpu.transport.traced import TracedOs
from gpu.transport.tracetext import format_event

PAGE = hostmem.page_size
READ_WRITE = hostmem.PROT_READ | hostmem.PROT_WRITE
ANONYMOUS = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS


def _record(tmp_path: Path, inner: Os, session: Callable[[Os], Any]) -> tuple[Any, list[Event]]:
    with Recorder(tmp_path / "trace") as recorder:
        result = session(TracedOs(inner, recorder))
    return result, read_trace(tmp_path / "trace")


def _failing(call: Callable[[], object]) -> tuple[str, int | None]:
    try:
        call()
    except TransportError as error:
        return type(error).__name__, error.errno
    raise AssertionError("the call did not fail")


def _session(system: Os, fifo: str, sock: int) -> list[object]:
    """What a driver does, on files that every machine has. The result holds no addresses."""
    seen: list[object] = [
        system.exists("/proc/self"),
        system.exists("/dev/no-such-device"),
        system.read_file("/proc/uptime"),
        system.list_dir("/proc/self/fd"),
        _failing(lambda: system.open("/dev/no-such-device", os.O_RDWR)),
    ]
    terminal = system.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    number, size = bytearray(4), bytearray(8)
    system.ioctl(terminal, 0x80045430, number)  # TIOCGPTN
    system.ioctl(terminal, termios.TIOCSWINSZ, bytearray(struct.pack("4H", 24, 80, 0, 0)))
    system.ioctl(terminal, termios.TIOCGWINSZ, size)
    seen += [terminal, bytes(number), bytes(size)]
    seen.append(_failing(lambda: system.ioctl(terminal, 0xC0184B02, bytearray(24))))
    system.close(terminal)

    pipe = system.open(fifo, os.O_RDWR)
    system.write_file(fifo, b"12345")
    system.ioctl(pipe, termios.FIONREAD, number)
    system.close(pipe)
    seen += [bytes(number), _failing(lambda: system.close(pipe))]

    buffer = (ctypes.c_char * 400)()
    config = bytearray(struct.pack("i4xQ", 400, ctypes.addressof(buffer)))
    seen.append(system.ioctl(sock, 0x8912, config, [Ref(8, count_offset=0)]))  # SIOCGIFCONF
    seen += [bytes(config[:4]), bytes(buffer)]

    zero = system.open("/dev/zero", os.O_RDWR)
    address = system.mmap(zero, 2 * PAGE, READ_WRITE, hostmem.MAP_PRIVATE)
    ctypes.memset(address, 1, 2 * PAGE)
    system.munmap(address, 2 * PAGE)
    system.close(zero)
    return seen


def test_a_session_replays_without_its_files(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        number = sock.fileno()
        recorded, events = _record(tmp_path, RealOs(), lambda s: _session(s, fifo, number))
    assert str(tmp_path) not in (tmp_path / "trace").read_text()
    os.unlink(fifo)
    replay = ReplayOs(events)
    assert _session(replay, "/elsewhere/fifo", number) == recorded
    replay.finish()


class _Kernel(RealOs):
    """Inverts the bytes at the end of a chain of pointers, wherever they are."""

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        for block in follow(argument_memory(argument), refs):
            if not block.pointers:
                block.write(bytes(255 - byte for byte in block.read()))
        return 3


class _Item(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("tag", ctypes.c_uint32), ("data", ctypes.c_uint64)]


class _List(ctypes.Structure):
    _fields_ = [("items", ctypes.c_uint64), ("count", ctypes.c_uint16), ("tag", ctypes.c_uint16)]


_LEAF = Ref(8, count_offset=0)
_REFS = [Ref(0, count_offset=8, count_width=2, item_size=16, refs=(_LEAF,))]


class _Tree:
    """A list of items, each with data of its own."""

    def __init__(self, *leaves: bytes):
        self.leaves = [ctypes.create_string_buffer(leaf, len(leaf)) for leaf in leaves]
        items = [_Item(len(x), 7, ctypes.addressof(x) if len(x) else 0) for x in self.leaves]
        self.items = (_Item * max(1, len(items)))(*items)
        self.list = _List(ctypes.addressof(self.items), len(items), 9)

    def contents(self) -> list[bytes]:
        return [leaf.raw for leaf in self.leaves]


def test_nested_pointers_are_recorded_and_replayed(tmp_path: Path) -> None:
    tree = _Tree(b"first", b"", b"third")
    result, events = _record(tmp_path, _Kernel(), lambda s: s.ioctl(3, 1, tree.list, _REFS))
    inverted = [bytes(255 - byte for byte in leaf) for leaf in (b"first", b"", b"third")]
    assert tree.contents() == inverted and result == 3
    assert isinstance(events[0], Ioctl)
    assert [memory.at for memory in events[0].memory] == [(), (0,), (0, 8), (0, 40)]
    other = _Tree(b"first", b"", b"third")
    pointers = [item.data for item in other.items]
    assert ReplayOs(events).ioctl(3, 1, other.list, _REFS) == 3
    assert other.contents() == inverted
    assert [item.data for item in other.items] == pointers


def _with(tree: _Tree, change: Callable[[_Tree], None]) -> _Tree:
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (
            _Tree(b"first", b"", b"thXrd"),
            r"event 0, ioctl 0x1 on /dev/x, what the pointer at 0x0 -> 0x28 leads to, offset 0x2:"
            " wanted bytes 69 72 64, got 58 72 64",
        ),
        (_Tree(b"first", b"", b"thirdX"), "pointer at 0x0 leads to, offset 0x20: wanted bytes 05"),
        (
            _Tree(b"first", b""),
            "the argument, offset 0x8: wanted bytes 03 00 09 00 00 00 00 00, got 02 00",
        ),
        (_with(_Tree(b"first", b"", b"third"), lambda t: setattr(t.list, "tag", 8)), "offset 0xa:"),
        (
            _with(_Tree(b"first", b"", b"third"), lambda t: setattr(t.items[0], "data", 0)),
            "on /dev/x: wanted what the pointer at 0x0 -> 0x8 leads to, got .*0x28",
        ),
        (
            _with(_Tree(b"first", b"", b"third"), lambda t: setattr(t.items[2], "data", 0)),
            "wanted 4 blocks of memory, got 3",
        ),
    ],
)
def test_differing_memory_is_named(tmp_path: Path, tree: _Tree, words: str) -> None:
    recorded = _Tree(b"first", b"", b"third")
    _, events = _record(tmp_path, _Kernel(), lambda s: s.ioctl(3, 1, recorded.list, _REFS))
    assert isinstance(events[0], Ioctl)
    event = Ioctl(3, "/dev/x", 1, events[0].memory, 3)
    with pytest.raises(TransportError, match=words):
        ReplayOs([event]).ioctl(3, 1, tree.list, _REFS)


def test_an_argument_of_another_size_differs() -> None:
    event = Ioctl(3, "", 1, (Memory((), bytes(8), bytes(8)),), 0)
    with pytest.raises(TransportError, match="the argument: wanted 8 bytes, got 9 bytes"):
        ReplayOs([event]).ioctl(3, 1, bytearray(9))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.exists("/dev/x"), "event 0: wanted open, got Exists with path '/dev/x'"),
        (lambda s: s.open("/dev/y", 2), "event 0, open, path: wanted '/dev/x', got '/dev/y'"),
        (lambda s: s.open("/dev/x", 0), "event 0, open, flags: wanted 2, got 0"),
        (
            lambda s: (s.open("/dev/x", 2), s.ioctl(5, 0xC0184B02, bytearray(8))),
            r"event 1, ioctl, request: wanted 0x1, got 0xc0184b02 \(IOWR",
        ),
        (
            lambda s: (s.open("/dev/x", 2), s.ioctl(6, 1, bytearray(8))),
            "event 1, ioctl, fd: wanted 5, got 6",
        ),
        (
            lambda s: (s.open("/dev/x", 2), s.ioctl(5, 1, bytearray(8)), s.close(5)),
            "event 2: wanted the end of the recording, got Close with fd 5",
        ),
        (lambda s: s.finish(), "event 0: wanted open, got no call; 2 events remain"),
    ],
)
def test_differing_calls_are_named(call: Callable[[ReplayOs], object], words: str) -> None:
    events: list[Event] = [
        Open("/dev/x", 2, 5),
        Ioctl(5, "/dev/x", 1, (Memory((), bytes(8), bytes(8)),), 0),
    ]
    with pytest.raises(TransportError, match=words):
        call(ReplayOs(events))


def test_failures_are_raised_again() -> None:
    replay = ReplayOs(
        [
            Open("/dev/x", 2, -1, Failure(13, "run this")),
            Open("/dev/x", 2, -1, Failure(2)),
            Map(-1, "", PAGE, 3, ANONYMOUS, 0, 0, 0, Failure(12)),
            Ioctl(5, "/dev/x", 1, (Memory((), bytes(4), b"1234"),), -1, Failure(22)),
        ]
    )
    with pytest.raises(AccessDenied, match="run this"):
        replay.open("/dev/x", 2)
    with pytest.raises(TransportError, match=r"open of /dev/x, event 1 .*No such file") as caught:
        replay.open("/dev/x", 2)
    assert caught.value.errno == 2
    with pytest.raises(OutOfMemory):
        replay.mmap(-1, PAGE, 3, ANONYMOUS)
    argument = bytearray(4)
    with pytest.raises(TransportError, match="Invalid argument"):
        replay.ioctl(5, 1, argument)
    assert argument == b"1234"  # kernels write also what they refuse
    replay.finish()


def test_mappings_are_where_they_were() -> None:
    wish = hostmem.reserve(PAGE)
    hostmem.release(wish, PAGE)
    replay = ReplayOs(
        [Map(3, "", PAGE, READ_WRITE, hostmem.MAP_SHARED, 0, 0, wish), Unmap(wish, PAGE)]
    )
    assert replay.mmap(3, PAGE, READ_WRITE, hostmem.MAP_SHARED) == wish
    assert ctypes.string_at(wish, PAGE) == bytes(PAGE)
    replay.munmap(wish, PAGE)


def test_a_reservation_at_an_address_is_there_or_fails() -> None:
    taken = hostmem.map_anonymous(PAGE)
    flags = ANONYMOUS | hostmem.MAP_FIXED_NOREPLACE
    replay = ReplayOs([Map(-1, "", PAGE, 0, flags, 0, taken, taken)] * 2)
    with pytest.raises(TransportError, match="File exists"):
        replay.mmap(-1, PAGE, 0, flags, 0, taken)
    hostmem.unmap(taken, PAGE)
    assert replay.mmap(-1, PAGE, 0, flags, 0, taken) == taken
    hostmem.unmap(taken, PAGE)


def test_a_mapping_elsewhere_is_aligned_as_the_recorded_one() -> None:
    """So what a driver aligns in it is found at the same place in it."""
    size, huge = 5 * PAGE, 2 << 20
    for _ in range(8):
        taken = hostmem.map_anonymous(size)
        lines = Path("/proc/self/maps").read_text().splitlines()
        mapped = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
        replay = ReplayOs([Map(-1, "", size, READ_WRITE, ANONYMOUS, 0, 0, taken)])
        found = replay.mmap(-1, size, READ_WRITE, ANONYMOUS)
        assert found != taken and (found - taken) % huge == 0
        ctypes.memset(found, 1, size)
        flags = ANONYMOUS | hostmem.MAP_FIXED_NOREPLACE
        for beside in (found - PAGE, found + size):  # nothing more is held than there was
            if not any(start <= beside < end for start, end in mapped):
                hostmem.unmap(hostmem.map_file(-1, 0, PAGE, 0, flags, beside), PAGE)
        hostmem.unmap(found, size)
        hostmem.unmap(taken, size)


def test_a_mapping_elsewhere_counts_as_the_recorded_one() -> None:
    taken = hostmem.map_anonymous(2 * PAGE)
    ctypes.memset(taken, 5, PAGE)
    told = struct.pack("<QQ", taken + 8, 1)
    events: list[Event] = [
        Map(3, "", 2 * PAGE, READ_WRITE, hostmem.MAP_SHARED, 0, 0, taken),
        *[Ioctl(3, "", 1, (Memory((), told, told),), 0)] * 2,
        Map(3, "", PAGE, 1, hostmem.MAP_SHARED | hostmem.MAP_FIXED, 0, taken, taken),
        Unmap(taken, 2 * PAGE),
    ]
    replay = ReplayOs(events)
    found = replay.mmap(3, 2 * PAGE, READ_WRITE, hostmem.MAP_SHARED)
    assert found != taken and ctypes.string_at(taken, 1) == b"\x05"
    assert replay.ioctl(3, 1, bytearray(struct.pack("<QQ", found + 8, 1))) == 0
    with pytest.raises(TransportError, match="offset 0x"):
        replay.ioctl(3, 1, bytearray(struct.pack("<QQ", found + 16, 1)))
    assert replay.ioctl(3, 1, bytearray(struct.pack("<QQ", found + 8, 1))) == 0
    fixed = hostmem.MAP_SHARED | hostmem.MAP_FIXED
    assert replay.mmap(3, PAGE, 1, fixed, 0, found) == found
    with pytest.raises(TransportError, match="munmap, address"):
        replay.munmap(found + PAGE, 2 * PAGE)
    replay.munmap(found, 2 * PAGE)
    hostmem.unmap(taken, 2 * PAGE)


def test_recording_does_not_change_what_fails(tmp_path: Path) -> None:
    def session(system: Os) -> None:
        for call in (
            lambda: system.open("/dev/no-such-device", 0),
            lambda: system.close(99999),
            lambda: system.ioctl(99999, 1, bytearray(4)),
            lambda: system.mmap(99999, PAGE, READ_WRITE, hostmem.MAP_SHARED),
            lambda: system.read_file("/dev/no-such-device"),
            lambda: system.write_file("/dev/no-such-device", b"x"),
            lambda: system.list_dir("/dev/no-such-device"),
        ):
            _failing(call)
        with pytest.raises(OutOfMemory):
            system.mmap(-1, 1 << 60, READ_WRITE, ANONYMOUS)

    _, events = _record(tmp_path, RealOs(), session)
    assert all(not isinstance(event, Exists) and event.failure for event in events)
    replay = ReplayOs(events)
    session(replay)
    replay.finish()


@pytest.mark.parametrize(
    ("argument", "refs", "words"),
    [
        (bytearray(8), [Ref(4)], "8 bytes at 4 of a structure of 8"),
        (bytearray(8), [Ref(-1)], "8 bytes at -1"),
        (bytearray(b"\1" * 8), [Ref(0, count_offset=8)], "4 bytes at 8"),
        (bytearray(b"\1" * 8), [Ref(0, size=1 << 40)], "more than 67108864 bytes"),
        (bytearray(b"\1" * 12), [Ref(0, count_offset=8, item_size=1 << 20)], "check the count"),
    ],
)
def test_references_have_bounds(argument: bytearray, refs: list[Ref], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        follow(argument_memory(argument), refs)


def test_blocks_are_counted() -> None:
    leaf = ctypes.create_string_buffer(1)
    array = (ctypes.c_uint64 * MAX_BLOCKS)(*[ctypes.addressof(leaf)] * MAX_BLOCKS)
    argument = bytearray(struct.pack("<QI", ctypes.addressof(array), MAX_BLOCKS))
    refs = [Ref(0, count_offset=8, item_size=8, refs=(Ref(0, size=1),))]
    with pytest.raises(InvalidValue, match=f"{MAX_BLOCKS} blocks"):
        follow(argument_memory(argument), refs)


def test_a_structure_by_its_size_has_pointers_within() -> None:
    """As NVIDIA's controls: a pointer, a size in bytes, and pointers in what it points at."""
    leaf = ctypes.create_string_buffer(b"leaf", 4)
    inner = ctypes.create_string_buffer(struct.pack("<IIQ", 1, 4, ctypes.addressof(leaf)), 16)
    argument = bytearray(struct.pack("<QI4x", ctypes.addressof(inner), 16))
    refs = [Ref(0, count_offset=8, refs=(Ref(8, count_offset=4),))]
    blocks = follow(argument_memory(argument), refs)
    assert [(block.at, block.size, block.pointers) for block in blocks] == [
        ((), 16, (0,)),
        ((0,), 16, (8,)),
        ((0, 8), 4, ()),
    ]
    assert blocks[2].read() == b"leaf"


def _register_session(system: Os, path: str, widths: Sequence[int]) -> list[object]:
    """What a driver of a PCI function does. The result holds no addresses."""
    fd = system.open(path, os.O_RDWR)
    system.lock(fd)
    system.pwrite(fd, b"\x06\x00", 4)
    seen: list[object] = [fd, system.pread(fd, 4, 3)]
    window = system.window(fd, 0x200, 0x100)
    part = window.sub(0x40, 0x40)
    for width in widths:
        part.write(8, width, 0xA5)
        seen += [part.read(8, width), window.read(0x48, width)]
    window.store(0x81, b"bulk")
    seen.append(window.load(0x80, 6))
    event = system.eventfd()
    seen += [event, system.wait([event], 0), system.take_events(event)]
    system.close(event)
    seen.append(_failing(lambda: system.pread(event, 1, 0)))
    seen.append(_failing(lambda: system.window(event, 8, 0)))
    system.close_window(window)
    system.close(fd)
    return seen


def test_registers_are_recorded_access_by_access_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "resource0"
    path.write_bytes(bytes(range(256)) * 16)
    widths = (1, 2, 4, 8)
    wanted, events = _record(
        tmp_path, RealOs(), lambda system: _register_session(system, str(path), widths)
    )
    accesses = [event for event in events if isinstance(event, Access)]
    assert [(each.kind, each.offset, len(each.data)) for each in accesses[:3]] == [
        *[("write", 0x48, 1), ("read", 0x48, 1), ("read", 0x48, 1)],
    ]
    assert len(accesses) == 3 * len(widths) + 2
    replay = ReplayOs(events)
    assert _register_session(replay, str(path), widths) == wanted
    replay.finish()
    assert first_difference(events, events) is None
    assert not list(differing_answers(events, events))
    assert all(format_event(event) for event in events)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda e: e._register(8, 2), "wanted 1 bytes, got 2 bytes"),
        (lambda e: e._register(4, 1), "offset"),
        (lambda e: e._register(8, 1, 0xA4), "data"),
    ],
)
def test_another_access_is_named(tmp_path: Path, change: Any, text: str) -> None:
    class Session:
        """The part of a driver that changes."""

        def __init__(self, system: Os):
            self.fd = system.open(str(tmp_path / "resource0"), os.O_RDWR)
            self.window = system.window(self.fd, 0x100, 0)

        def _register(self, offset: int, width: int, value: int = 0xA5) -> None:
            self.window.write(offset, width, value)

    (tmp_path / "resource0").write_bytes(bytes(0x100))
    _, events = _record(tmp_path, RealOs(), lambda system: Session(system)._register(8, 1))
    Session(ReplayOs(events))._register(8, 1)
    with pytest.raises(TransportError, match=text):
        change(Session(ReplayOs(events)))
