"""Events of a trace for people: a line for the call, and lines for the memory it changed."""

from __future__ import annotations

import errno
from typing import Final

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
    failure_of,
)
from gpu.transport.ioctl import describe

_ROW: Final = 16  # bytes of memory in a line
_MAX_ROWS: Final = 32  # of one block
_MAX_NAMES: Final = 8
_MAX_DATA: Final = 48


def format_event(event: Event) -> str:
    """An event as text, without a line break at its end.

    Of an ioctl's memory each 16 bytes are a line; where the kernel changed them, ``->`` and what
    they became follow. Long memory is cut, and says so.
    """
    lines = [f"{call_name(event)} {_summary(event)}"]
    if (failure := failure_of(event)) is not None:
        lines[0] += f" = {_failure(failure)}"
    if isinstance(event, Ioctl):
        for memory in event.memory:
            lines += _memory(memory)
    return "\n".join(lines)


def _summary(event: Event) -> str:
    done = failure_of(event) is None
    match event:
        case Open():
            return f"{event.path} flags {event.flags:#x}" + (f" = fd {event.fd}" if done else "")
        case Close():
            return f"fd {event.fd} {event.path}".rstrip()
        case Ioctl():
            result = f" = {event.result}" if done else ""
            return f"fd {event.fd} {event.path} {describe(event.request)}{result}"
        case IoctlValue():
            result = f" = {event.result}" if done else ""
            call = f"fd {event.fd} {event.path} {describe(event.request)}"
            return f"{call} value {event.value:#x}{result}"
        case Map():
            source = "memory" if event.fd < 0 else f"fd {event.fd} {event.path}".rstrip()
            wish = f" at {event.address:#x}" if event.address else ""
            return (
                f"{source} {event.size:#x} bytes{wish}, offset {event.offset:#x},"
                f" prot {event.prot:#x}, flags {event.flags:#x}"
                + (f" = {event.result:#x}" if done else "")
            )
        case Unmap():
            return f"{event.address:#x} {event.size:#x} bytes"
        case ReadFile() | WriteFile():
            return f"{event.path} {len(event.data)} bytes {_data(event.data)}".rstrip()
        case ListDir():
            return f"{event.path} {_names(event.names)}".rstrip()
        case Exists():
            return f"{event.path} = {'yes' if event.found else 'no'}"
        case PRead() | PWrite():
            place = f"fd {event.fd} {event.path}".rstrip()
            return f"{place} at {event.offset:#x}: {event.data[:_MAX_DATA].hex(' ')}".rstrip()
        case OpenWindow():
            place = f"fd {event.fd} {event.path}".rstrip()
            made = f" = window {event.number}" if done else ""
            return f"{place} {event.size:#x} bytes, offset {event.offset:#x}{made}"
        case Access():
            value = event.data[::-1].hex() if event.kind in ("read", "write") else ""
            told = f"0x{value}" if value else event.data[:_MAX_DATA].hex(" ")
            return f"{event.kind} window {event.number} + {event.offset:#x}: {told}"
        case CloseWindow():
            return f"window {event.number}"
        case EventFd():
            return f"= fd {event.fd}"
        case TakeEvents():
            return f"fd {event.fd} = {event.count}"
        case Wait():
            asked, ready = (" ".join(map(str, fds)) for fds in (event.fds, event.ready))
            return f"for fd {asked} = {ready or 'none'}"
        case Lock():
            return f"fd {event.fd} {event.path}".rstrip()


def _failure(failure: Failure) -> str:
    name = errno.errorcode.get(failure.errno, f"errno {failure.errno}")
    return name if failure.hint is None else f"{name} ({failure.hint})"


def _memory(memory: Memory) -> list[str]:
    name = " -> ".join(f"{offset:#x}" for offset in memory.at)
    lines = [f"  pointer {name}: {len(memory.before)} bytes"] if memory.at else []
    starts = range(0, len(memory.before), _ROW)
    for start in starts[:_MAX_ROWS]:
        before, after = (data[start : start + _ROW] for data in (memory.before, memory.after))
        change = f" -> {after.hex(' ')}" if after != before else ""
        lines.append(f"  {start:04x}: {before.hex(' ')}{change}")
    if len(starts) > _MAX_ROWS:
        lines.append(f"  ... {len(memory.before) - _MAX_ROWS * _ROW} bytes more")
    return lines


def _data(data: bytes) -> str:
    shown = repr(data[:_MAX_DATA].decode("latin-1")) if data else ""
    return shown + ("..." if len(data) > _MAX_DATA else "")


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return " ".join(names[:_MAX_NAMES]) + more
