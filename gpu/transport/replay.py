"""Running a driver on a recording: no device is needed, and every difference has a name.

The driver must make the recorded calls in the recorded order. What it passes is compared byte by
byte, pointers aside; what the kernel answered then is answered now. Mappings are anonymous memory,
where possible at the recorded address, so that addresses in arguments are the same; a mapping that
had to go elsewhere is known, and its addresses count as equal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, OutOfMemory, TransportError
from gpu.core.ref import POINTER_SIZE, Argument, Block, Ref, argument_memory, follow
from gpu.core.traceevent import (
    Access,
    Close,
    CloseWindow,
    Event,
    EventFd,
    Exists,
    Failure,
    Ioctl,
    IoctlValue,
    ListDir,
    Lock,
    Map,
    Memory,
    Open,
    OpenWindow,
    PRead,
    PWrite,
    ReadFile,
    TakeEvents,
    Unmap,
    Wait,
    WriteFile,
    call_name,
    shown_path,
)
from gpu.core.window import Window, check_access, check_range, check_value
from gpu.transport.ioctl import describe

_SHOWN_BYTES: Final = 16
_EXACTLY: Final = hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE
_WORD: Final = 8
# Mappings that go elsewhere are where the recorded ones were, modulo this: the largest pages.
_ALIGNED_ALIKE: Final = 2 << 20
_E = TypeVar("_E", bound=Event)


class _Mapping(NamedTuple):
    """A mapping of the recording, and where it is now."""

    recorded: int
    size: int
    address: int


class ReplayOs:
    """An `Os` that answers from the events of a trace.

    A call that differs raises TransportError, which names the event's index (the first is 0), the
    call, the field or the offset in the argument, what was wanted and what came; the recording
    stays at that event. Descriptors are the recorded numbers: this process does not have them.
    """

    def __init__(self, events: Iterable[Event]):
        self._events = list(events)
        self._position = 0
        self._mappings: list[_Mapping] = []
        self._windows: dict[int, int] = {}  # their numbers, by id
        self._lock = threading.RLock()

    def finish(self) -> None:
        """Raises TransportError where the recording has events that were not asked for."""
        if self._position < len(self._events):
            left = len(self._events) - self._position
            self._differ(call_name(self._events[self._position]), f"no call; {left} events remain")

    def open(self, path: str, flags: int) -> int:
        """The recorded descriptor; see `Os.open`."""
        with self._lock:
            event = self._expect(Open, path=shown_path(path), flags=flags)
            self._end(event.failure, path)
            return event.fd

    def close(self, fd: int) -> None:
        """Checks that this descriptor is to be closed now; see `Os.close`."""
        with self._lock:
            event = self._expect(Close, fd=fd)
            self._end(event.failure, event.path)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Compares what the kernel would read, and fills in what it answered; see `Os.ioctl`."""
        with self._lock:
            event = self._expect(Ioctl, fd=fd, request=request)
            blocks = follow(argument_memory(argument), refs)
            self._compare_memory(event, blocks)
            for block, memory in zip(blocks, event.memory, strict=True):
                block.write(memory.after)
            self._end(event.failure, event.path)
            return event.result

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """What the kernel answered; see `Os.ioctl_value`."""
        with self._lock:
            event = self._expect(IoctlValue, fd=fd, request=request, value=value)
            self._end(event.failure, event.path)
            return event.result

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Anonymous memory in the place of the recorded mapping; see `Os.mmap`."""
        with self._lock:
            event = self._expect(Map, fd=fd, size=size, prot=prot, flags=flags, offset=offset)
            self._compare_address(event.address, address)
            self._end(event.failure, event.path)
            found = _map_again(size, prot, flags & _EXACTLY, address, event.result)
            self._mappings.append(_Mapping(event.result, size, found))
            return found

    def munmap(self, address: int, size: int) -> None:
        """Unmaps the memory that took the place of a mapping; see `Os.munmap`."""
        with self._lock:
            event = self._expect(Unmap, size=size)
            self._compare_address(event.address, address)
            self._end(event.failure, "memory")
            hostmem.unmap(address, size)

    def read_file(self, path: str) -> bytes:
        """What the file held; see `Os.read_file`."""
        with self._lock:
            event = self._expect(ReadFile, path=shown_path(path))
            self._end(event.failure, path)
            return event.data

    def write_file(self, path: str, data: bytes) -> None:
        """Compares what is written; see `Os.write_file`."""
        with self._lock:
            event = self._expect(WriteFile, path=shown_path(path), data=data)
            self._end(event.failure, path)

    def list_dir(self, path: str) -> list[str]:
        """The names that were in a folder; see `Os.list_dir`."""
        with self._lock:
            event = self._expect(ListDir, path=shown_path(path))
            self._end(event.failure, path)
            return list(event.names)

    def exists(self, path: str) -> bool:
        """Whether something had this path; see `Os.exists`."""
        with self._lock:
            event = self._expect(Exists, path=shown_path(path))
            self._end(None, path)
            return event.found

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """The bytes that were read; see `Os.pread`."""
        with self._lock:
            event = self._expect(PRead, fd=fd, size=size, offset=offset)
            self._end(event.failure, event.path)
            return event.data

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Compares what is written; see `Os.pwrite`."""
        with self._lock:
            event = self._expect(PWrite, fd=fd, data=data, offset=offset)
            self._end(event.failure, event.path)

    def window(self, fd: int, size: int, offset: int) -> Window:
        """Registers whose accesses are compared and answered; see `Os.window`."""
        with self._lock:
            event = self._expect(OpenWindow, fd=fd, size=size, offset=offset)
            self._end(event.failure, event.path)
            window = _ReplayWindow(self, event.number, size)
            self._windows[id(window)] = event.number
            return window

    def close_window(self, window: Window) -> None:
        """Checks that this window is to be ended now; see `Os.close_window`."""
        with self._lock:
            self._expect(CloseWindow, number=self._windows.pop(id(window)))
            self._end(None, "a window")

    def access(self, number: int, kind: str, offset: int, size: int, data: bytes | None) -> bytes:
        """One access through a window; `data` is what a write or store brings."""
        with self._lock:
            event = self._expect(Access, number=number, kind=kind, offset=offset)
            if len(event.data) != size:
                self._differ(f"{len(event.data)} bytes", f"{size} bytes", call_name(event))
            if data is not None:
                self._expect(Access, data=data)
            self._end(None, "a window")
            return event.data

    def eventfd(self) -> int:
        """The recorded descriptor; see `Os.eventfd`."""
        with self._lock:
            event = self._expect(EventFd)
            self._end(None, "an eventfd")
            return event.fd

    def take_events(self, fd: int) -> int:
        """How often it was signalled then; see `Os.take_events`."""
        with self._lock:
            event = self._expect(TakeEvents, fd=fd)
            self._end(None, "an eventfd")
            return event.count

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Those that could be read then, at once; see `Os.wait`. Times are not compared."""
        with self._lock:
            event = self._expect(Wait, fds=tuple(fds))
            self._end(None, "descriptors")
            return list(event.ready)

    def lock(self, fd: int) -> None:
        """Whether the lock was to be had; see `Os.lock`."""
        with self._lock:
            event = self._expect(Lock, fd=fd)
            self._end(event.failure, event.path)

    def _expect(self, kind: type[_E], /, **got: Any) -> _E:
        """The next event, if it is of this kind and its fields have these values."""
        call = ", ".join(f"{name} {_show(name, value)}" for name, value in got.items())
        if self._position == len(self._events):
            self._differ("the end of the recording", f"{kind.__name__} with {call}")
        event = self._events[self._position]
        if not isinstance(event, kind):
            self._differ(call_name(event), f"{kind.__name__} with {call}")
        for name, value in got.items():
            if (wanted := getattr(event, name)) != value:
                self._differ(_show(name, wanted), _show(name, value), f"{call_name(event)}, {name}")
        return event

    def _end(self, failure: Failure | None, path: str) -> None:
        """Goes on to the next event, and raises where the recorded call failed."""
        position, self._position = self._position, self._position + 1
        if failure is None:
            return
        if failure.hint is not None:
            raise AccessDenied(path, failure.hint)
        event = self._events[position]
        reason = os.strerror(failure.errno) if failure.errno else "as recorded"
        message = f"{call_name(event)} of {path}, event {position} of the recording: {reason}"
        if isinstance(event, Map) and failure.errno == errno.ENOMEM:
            raise OutOfMemory(message)
        raise TransportError(message, failure.errno or None)

    def _compare_memory(self, event: Ioctl, blocks: Sequence[Block]) -> None:
        call = f"ioctl {describe(event.request)} on {event.path}"
        for block, memory in zip(blocks, event.memory, strict=False):
            place = f"{call}, {_place(block.at)}"
            if block.at != memory.at:
                self._differ(_place(memory.at), _place(block.at), call)
            if block.size != len(memory.before):
                self._differ(f"{len(memory.before)} bytes", f"{block.size} bytes", place)
            self._compare_bytes(block, memory, place)
        if len(blocks) != len(event.memory):
            self._differ(f"{len(event.memory)} blocks of memory", f"{len(blocks)}", call)

    def _compare_bytes(self, block: Block, memory: Memory, place: str) -> None:
        wanted, got = bytearray(memory.before), bytearray(block.read())
        for pointer in block.pointers:
            wanted[pointer : pointer + POINTER_SIZE] = got[pointer : pointer + POINTER_SIZE]
        start = 0
        while wanted[start:] != got[start:]:
            start = next(i for i in range(start, len(got)) if wanted[i] != got[i])
            word = slice(start // _WORD * _WORD, start // _WORD * _WORD + _WORD)
            recorded = int.from_bytes(wanted[word], "little")
            if self._moved(recorded) != int.from_bytes(got[word], "little"):
                shown = slice(start, start + _SHOWN_BYTES)
                place = f"{place}, offset {start:#x}"
                self._differ(f"bytes {wanted[shown].hex(' ')}", got[shown].hex(" "), place)
            start = word.stop

    def _compare_address(self, recorded: int, address: int) -> None:
        if self._moved(recorded) != address:
            call = call_name(self._events[self._position])
            self._differ(f"{self._moved(recorded):#x}", f"{address:#x}", f"{call}, address")

    def _moved(self, recorded: int) -> int:
        """Where a recorded address is now."""
        for mapping in reversed(self._mappings):
            if mapping.recorded <= recorded < mapping.recorded + mapping.size:
                return recorded - mapping.recorded + mapping.address
        return recorded

    def _differ(self, wanted: str, got: str, place: str = "") -> NoReturn:
        where = f"event {self._position}" + (f", {place}" if place else "")
        raise TransportError(f"the recording differs at {where}: wanted {wanted}, got {got}")


class _ReplayWindow:
    """A window of a recording: parts made by `sub` count from the outermost one, as they did."""

    def __init__(self, system: ReplayOs, number: int, size: int, base: int = 0):
        self._system = system
        self._number = number
        self._size = size
        self._base = base

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, width: int) -> int:
        check_access(self._size, offset, width, self._base)
        return int.from_bytes(self._access("read", offset, width, None), "little")

    def write(self, offset: int, width: int, value: int) -> None:
        check_access(self._size, offset, width, self._base)
        check_value(offset, width, value)
        self._access("write", offset, width, value.to_bytes(width, "little"))

    def load(self, offset: int, size: int) -> bytes:
        check_range(self._size, offset, size)
        return self._access("load", offset, size, None)

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        source = bytes(data)
        check_range(self._size, offset, len(source))
        self._access("store", offset, len(source), source)

    def sub(self, offset: int, size: int) -> _ReplayWindow:
        check_range(self._size, offset, size)
        return _ReplayWindow(self._system, self._number, size, self._base + offset)

    def _access(self, kind: str, offset: int, size: int, data: bytes | None) -> bytes:
        return self._system.access(self._number, kind, self._base + offset, size, data)


def _map_again(size: int, prot: int, exactly: int, address: int, recorded: int) -> int:
    """Memory at `address` where the flags `exactly` say so, else where it was recorded or can be.

    Raises as `hostmem.map_file` does, also where MAP_FIXED_NOREPLACE finds something in this
    process that the recorded one did not have there.
    """
    flags = hostmem.MAP_PRIVATE | hostmem.MAP_ANONYMOUS | hostmem.MAP_NORESERVE
    if exactly:
        return hostmem.map_file(-1, 0, size, prot, flags | exactly, address)
    with contextlib.suppress(TransportError):  # what is there now stays
        there = flags | hostmem.MAP_FIXED_NOREPLACE
        return hostmem.map_file(-1, 0, size, prot, there, recorded)
    # Drivers cut aligned parts out of what they map: those lie alike in it.
    elsewhere = hostmem.reserve(size, _ALIGNED_ALIKE, recorded % _ALIGNED_ALIKE)
    return hostmem.map_file(-1, 0, size, prot, flags | hostmem.MAP_FIXED, elsewhere)


def _place(at: tuple[int, ...]) -> str:
    if not at:
        return "the argument"
    return "what the pointer at " + " -> ".join(f"{offset:#x}" for offset in at) + " leads to"


def _show(name: str, value: object) -> str:
    if name == "request" and isinstance(value, int):
        return describe(value)
    return value.hex(" ") if isinstance(value, bytes) else repr(value)
