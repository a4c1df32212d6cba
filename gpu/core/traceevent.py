"""The events of a recording: each is one call that a driver made, and what came of it.

How they are written to a file is in `gpu/core/trace.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, TypeAlias

_DEVICE_ROOTS: Final = tuple(f"/{root}/" for root in ("dev", "sys", "proc"))


@dataclass(frozen=True, slots=True)
class Failure:
    """How a call failed: its errno (0: none), and for denied access the hint."""

    errno: int
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """A block that an ioctl's argument leads to, as `gpu.core.ref.Block` names it."""

    at: tuple[int, ...]
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Open:
    """A file was opened; `fd` is -1 where that failed."""

    path: str
    flags: int
    fd: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """A descriptor was closed."""

    fd: int
    path: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Ioctl:
    """A request was made; the first of `memory` is the argument itself."""

    fd: int
    path: str
    request: int
    memory: tuple[Memory, ...]
    result: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class IoctlValue:
    """A request was made whose argument is a number."""

    fd: int
    path: str
    request: int
    value: int
    result: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Map:
    """A device or memory was mapped at `result`; `address` is where it was asked for."""

    fd: int
    path: str
    size: int
    prot: int
    flags: int
    offset: int
    address: int
    result: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Unmap:
    """Pages were unmapped."""

    address: int
    size: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file was read whole."""

    path: str
    data: bytes
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file was written."""

    path: str
    data: bytes
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ListDir:
    """A folder was listed."""

    path: str
    names: tuple[str, ...]
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """It was asked whether a path exists."""

    path: str
    found: bool


@dataclass(frozen=True, slots=True)
class PRead:
    """Bytes of an open file were read."""

    fd: int
    path: str
    size: int
    offset: int
    data: bytes
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class PWrite:
    """Bytes of an open file were written."""

    fd: int
    path: str
    data: bytes
    offset: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """Registers behind an open file became a window, which has a number in the recording."""

    fd: int
    path: str
    size: int
    offset: int
    number: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """One access through a window: ``read``, ``write``, ``load`` or ``store``, in little-endian."""

    number: int
    kind: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CloseWindow:
    """A window was ended."""

    number: int


@dataclass(frozen=True, slots=True)
class EventFd:
    """A counter of events was made."""

    fd: int


@dataclass(frozen=True, slots=True)
class TakeEvents:
    """A counter of events was read and set to 0."""

    fd: int
    count: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Descriptors were waited for; `ready` are those that could be read then."""

    fds: tuple[int, ...]
    ready: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of an open file was asked for."""

    fd: int
    path: str
    failure: Failure | None = None


# Kinds that cannot fail: what is wrong there is an error of the program.
Unfailing: TypeAlias = Exists | Access | CloseWindow | EventFd | TakeEvents | Wait
Failing: TypeAlias = (
    Open
    | Close
    | Ioctl
    | IoctlValue
    | Map
    | Unmap
    | ReadFile
    | WriteFile
    | ListDir
    | PRead
    | PWrite
    | OpenWindow
    | Lock
)
Event: TypeAlias = Failing | Unfailing


def failure_of(event: Event) -> Failure | None:
    """How a call failed; None where it did not, or cannot."""
    return None if isinstance(event, Unfailing) else event.failure


KINDS: Final[dict[str, type[Event]]] = {
    "open": Open,
    "close": Close,
    "ioctl": Ioctl,
    "ioctl_value": IoctlValue,
    "mmap": Map,
    "munmap": Unmap,
    "read_file": ReadFile,
    "write_file": WriteFile,
    "list_dir": ListDir,
    "exists": Exists,
    "pread": PRead,
    "pwrite": PWrite,
    "window": OpenWindow,
    "access": Access,
    "close_window": CloseWindow,
    "eventfd": EventFd,
    "take_events": TakeEvents,
    "wait": Wait,
    "lock": Lock,
}
"""The class of each call's events."""
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


def call_name(event: Event) -> str:
    """The name of the call that an event is of, such as ``ioctl``."""
    return _NAMES[type(event)]


def shown_path(path: str) -> str:
    """A path as a trace holds it: of what is no device file, only the last part."""
    normal = os.path.normpath(path)
    if normal.startswith(_DEVICE_ROOTS):
        return normal
    return f".../{os.path.basename(normal)}"
