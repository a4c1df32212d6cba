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


Event: TypeAlias = Open | Close | Ioctl | Map | Unmap | ReadFile | WriteFile | ListDir | Exists
KINDS: Final[dict[str, type[Event]]] = {
    "open": Open,
    "close": Close,
    "ioctl": Ioctl,
    "mmap": Map,
    "munmap": Unmap,
    "read_file": ReadFile,
    "write_file": WriteFile,
    "list_dir": ListDir,
    "exists": Exists,
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
