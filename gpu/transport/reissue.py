"""Making the calls of a recording again, on a replay of the same recording or of another one.

That compares two recordings the way a driver that runs on a replay is compared with one: call by
call, byte by byte, pointers and addresses of mappings aside.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpu.core import hostmem
from gpu.core.errors import AccessDenied, FormatError, OutOfMemory, TransportError
from gpu.core.ref import POINTER_SIZE, Ref
from gpu.core.traceevent import (
    Access,
    Close,
    CloseWindow,
    Event,
    EventFd,
    Exists,
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
    failure_of,
)
from gpu.core.window import Window
from gpu.transport.replay import ReplayOs

_WORD: Final = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two recordings part: the number of the event in the first, and what differs."""

    event: int
    text: str


def first_difference(wanted: Iterable[Event], made: Iterable[Event]) -> Difference | None:
    """Make the calls of ``made`` on a replay of ``wanted``; None where all are as recorded.

    What is compared is what the calls ask. Raises FormatError for a recording that cannot be made
    again: one that maps at a fixed address outside of what it had mapped before.
    """
    events = list(wanted)
    reissue = _Reissue(ReplayOs(events))
    number = 0
    try:
        for event in made:
            failure = failure_of(event)
            try:
                reissue.call(event)
            except (AccessDenied, TransportError, OutOfMemory) as error:
                answered = number < len(events) and failure_of(events[number]) is not None
                if not answered or "the recording differs" in error.message:
                    return Difference(number, error.message)
                if failure is None:
                    return Difference(number, f"{call_name(event)} fails: {error.message}")
            number += 1
        reissue.os.finish()
    except TransportError as error:
        return Difference(number, error.message)
    finally:
        reissue.close()
    return None


def differing_answers(first: Iterable[Event], second: Iterable[Event]) -> Iterator[Difference]:
    """Where two recordings of the same calls got other answers: values and bytes.

    Descriptors, pointers and addresses of mappings are left out: they are the process's own.
    """
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        text = _answers(one, other)
        if text:
            yield Difference(number, f"{call_name(one)}: {text}")


def _answers(one: Event, other: Event) -> str:
    """How the answers of two events of one call differ; empty where they do not."""
    match one, other:
        case Ioctl(), Ioctl():
            if one.result != other.result:
                return f"result {one.result} and {other.result}"
            return _memory_answers(one, other)
        case IoctlValue(), IoctlValue():
            return "" if one.result == other.result else f"result {one.result} and {other.result}"
        case ReadFile(), ReadFile():
            return "" if one.data == other.data else f"{one.path} holds other bytes"
        case ListDir(), ListDir():
            return "" if one.names == other.names else f"{one.path} has other names"
        case Exists(), Exists():
            return "" if one.found == other.found else f"{one.path} is there in one of them"
        case PRead(), PRead():
            return "" if one.data == other.data else f"{one.path} holds other bytes"
        case Access(), Access():
            return "" if one.data == other.data else f"{one.data.hex()} and {other.data.hex()}"
        case TakeEvents(), TakeEvents():
            return "" if one.count == other.count else f"{one.count} and {other.count} events"
        case Wait(), Wait():
            return "" if one.ready == other.ready else "others are ready"
    return ""


def _memory_answers(one: Ioctl, other: Ioctl) -> str:
    for mine, theirs in zip(one.memory, other.memory, strict=False):
        # Only what the kernel wrote is an answer.
        for at, (a, b) in enumerate(zip(mine.after, theirs.after, strict=False)):
            if a != b and (mine.before[at], theirs.before[at]) != (a, b):
                place = " -> ".join(f"{offset:#x}" for offset in mine.at) or "the argument"
                return f"{place}, offset {at:#x}: {a:#04x} and {b:#04x}"
    return ""


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A mapping of the recording that is made again, and where it is now."""

    recorded: int
    size: int
    address: int


class _Reissue:
    """Makes calls on a replay, with this process's descriptors and addresses in them."""

    def __init__(self, os: ReplayOs):
        self.os = os
        self._fds: dict[int, int] = {-1: -1}
        self._mappings: list[_Mapping] = []
        self._windows: dict[int, Window] = {}

    def close(self) -> None:
        """Unmaps what is left."""
        for mapping in self._mappings:
            hostmem.unmap(mapping.address, mapping.size)

    def call(self, event: Event) -> None:
        """One call. Raises what the replay raises."""
        match event:
            case Open():
                self._fds[event.fd] = self.os.open(event.path, event.flags)
            case Close():
                self.os.close(self._fd(event.fd))
            case Ioctl():
                self._ioctl(event)
            case Map():
                self._map(event)
            case Unmap():
                self.os.munmap(self._now(event.address), event.size)
                self._forget(event.address, event.size)
            case ReadFile():
                self.os.read_file(event.path)
            case WriteFile():
                self.os.write_file(event.path, event.data)
            case ListDir():
                self.os.list_dir(event.path)
            case Exists():
                self.os.exists(event.path)
            case _:
                self._registers(event)

    def _registers(self, event: Event) -> None:
        """A call of those that drivers of PCI functions make."""
        match event:
            case IoctlValue():
                self.os.ioctl_value(self._fd(event.fd), event.request, event.value)
            case PRead():
                self.os.pread(self._fd(event.fd), event.size, event.offset)
            case PWrite():
                self.os.pwrite(self._fd(event.fd), event.data, event.offset)
            case OpenWindow():
                window = self.os.window(self._fd(event.fd), event.size, event.offset)
                self._windows[event.number] = window
            case Access():
                self._access(self._window(event.number), event)
            case CloseWindow():
                self.os.close_window(self._window(event.number))
                del self._windows[event.number]
            case EventFd():
                self._fds[event.fd] = self.os.eventfd()
            case TakeEvents():
                self.os.take_events(self._fd(event.fd))
            case Wait():
                self.os.wait([self._fd(fd) for fd in event.fds], 0)
            case Lock():
                self.os.lock(self._fd(event.fd))

    def _fd(self, recorded: int) -> int:
        return self._fds.get(recorded, recorded)

    def _window(self, number: int) -> Window:
        if number not in self._windows:
            raise FormatError(f"window {number} is used that was not opened before")
        return self._windows[number]

    def _access(self, window: Window, event: Access) -> None:
        match event.kind:
            case "read":
                window.read(event.offset, len(event.data))
            case "write":
                value = int.from_bytes(event.data, "little")
                window.write(event.offset, len(event.data), value)
            case "load":
                window.load(event.offset, len(event.data))
            case "store":
                window.store(event.offset, event.data)
            case _:
                raise FormatError(f"an access {event.kind!r}: read, write, load or store is wanted")

    def _map(self, event: Map) -> None:
        wish = self._now(event.address)
        fixed = event.flags & (hostmem.MAP_FIXED | hostmem.MAP_FIXED_NOREPLACE)
        if fixed and not self._is_ours(event.address, event.size):
            raise FormatError(
                f"a mapping at the fixed address {event.address:#x}, outside of what the recording"
                " had mapped before: it cannot be made again in another process"
            )
        fd = self._fd(event.fd)
        place = self.os.mmap(fd, event.size, event.prot, event.flags, event.offset, wish)
        if fixed:
            return  # within a mapping that is known
        self._mappings.append(_Mapping(event.result, event.size, place))

    def _is_ours(self, address: int, size: int) -> bool:
        return any(
            m.recorded <= address and address + size <= m.recorded + m.size for m in self._mappings
        )

    def _now(self, address: int) -> int:
        """Where a recorded address is in this process."""
        for mapping in reversed(self._mappings):
            if mapping.recorded <= address < mapping.recorded + mapping.size:
                return address - mapping.recorded + mapping.address
        return address

    def _forget(self, address: int, size: int) -> None:
        self._mappings = [m for m in self._mappings if (m.recorded, m.size) != (address, size)]

    def _ioctl(self, event: Ioctl) -> None:
        blocks = {memory.at: self._block(memory) for memory in event.memory}
        for at, block in blocks.items():
            if at:
                parent, address = blocks.get(at[:-1]), ctypes.addressof(block)
                if parent is None or not 0 <= at[-1] <= len(parent) - POINTER_SIZE:
                    raise FormatError(f"an ioctl's memory {list(at)} that no pointer leads to")
                ctypes.c_uint64.from_buffer(parent, at[-1]).value = address
        refs = _refs((), event.memory)
        fd = self._fd(event.fd)
        self.os.ioctl(fd, event.request, blocks[()], refs)

    def _block(self, memory: Memory) -> ctypes.Array[ctypes.c_char]:
        """What the call is given: the recorded bytes, with addresses of this process."""
        data = bytearray(memory.before)
        for at in range(0, len(data) - _WORD + 1, _WORD):
            recorded = int.from_bytes(data[at : at + _WORD], "little")
            data[at : at + _WORD] = self._now(recorded).to_bytes(_WORD, "little")
        return (ctypes.c_char * len(data)).from_buffer(data)


def _refs(at: tuple[int, ...], memory: tuple[Memory, ...]) -> tuple[Ref, ...]:
    """The pointers within the block at a place."""
    return tuple(
        Ref(block.at[-1], len(block.before), refs=_refs(block.at, memory))
        for block in memory
        if block.at and block.at[:-1] == at
    )
