"""Recordings of what a driver asked of the operating system, as files.

A trace is text, one JSON object a line: first a header with the format's name and version, then one
event per call (`gpu/core/traceevent.py`), in the order in which calls ended. Bytes are in hex. Of
the machine a trace holds no names but device paths.

Every line is written whole, so that a crash loses at most the call it happened in.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, TextIO, get_args, get_origin, get_type_hints

from gpu.core.errors import FormatError
from gpu.core.files import read_bytes
from gpu.core.traceevent import KINDS, Event, Ioctl, Map, call_name

FORMAT: Final = "gpu-trace"
VERSION: Final = 1
MAX_FILE_SIZE: Final = 4 << 30
"""Bytes of the largest trace file that is read."""
_SMALLEST_PAGE: Final = 4096
_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 64) - 1


class Recorder:
    """Writes events to a trace file as they come; threads may share it.

    A context manager: leaving the block closes the file.
    """

    def __init__(self, target: str | os.PathLike[str] | TextIO):
        """Begins a trace in a new file, replacing an old one, or in a text file that is open.

        A file that it opens itself has every event the moment it is recorded. Raises OSError as the
        system does.
        """
        self._lock = threading.Lock()
        self._owned = isinstance(target, str | os.PathLike)
        self._file = _open(target) if isinstance(target, str | os.PathLike) else target
        self._write({"format": FORMAT, "version": VERSION})

    def record(self, event: Event) -> None:
        """Writes one event."""
        self._write({"call": call_name(event), **_encode_fields(event)})

    def close(self) -> None:
        """Closes the file, if the recorder opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            self._file.write(text)


def read_trace(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a trace file.

    Raises FormatError, naming the line, for what is no trace, is cut off within a line, is of a
    newer version or was damaged; OSError as the system does.
    """
    name = os.path.basename(os.fspath(path))
    if (size := os.stat(path).st_size) > MAX_FILE_SIZE:
        raise FormatError(f"{name} has {size} bytes; traces have at most {MAX_FILE_SIZE}")
    return parse_trace(name, read_bytes(path))


def is_trace(data: bytes) -> bool:
    """Whether some bytes begin as a trace does, of whatever version."""
    return data.startswith(b'{"format":"%s"' % FORMAT.encode())


def parse_trace(name: str, data: bytes) -> list[Event]:
    """The events in the bytes of a trace; ``name`` is for messages. Errors as of `read_trace`."""
    lines = data.split(b"\n")
    if lines.pop():
        raise FormatError(f"{name}, line {len(lines) + 1}: cut off before its end; remove the line")
    if not lines:
        raise FormatError(f"{name} is empty; a trace begins with a header")
    _check_header(name, _parse_line(f"{name}, line 1", lines[0]))
    return [
        _event(f"{name}, line {number}", _parse_line(f"{name}, line {number}", line))
        for number, line in enumerate(lines[1:], 2)
    ]


def _open(path: str | os.PathLike[str]) -> TextIO:
    # Line buffered: what was recorded survives a crash of this process.
    return open(path, "w", buffering=1, encoding="ascii")


def _check_header(name: str, header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise FormatError(f"{name} is no trace: its first line does not say {FORMAT!r}")
    version = header.get("version")
    if version != VERSION or type(version) is not int:
        raise FormatError(
            f"{name} is a trace of version {version!r}; this package reads version {VERSION}:"
            " record it anew or use the version of the package that made it"
        )


def _parse_line(where: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{where}: a JSON object is wanted, not {type(value).__name__}")
    return value


def _event(where: str, fields: dict[str, Any]) -> Event:
    kind = fields.pop("call", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise FormatError(f"{where}: unknown call {kind!r}; known are {', '.join(KINDS)}")
    event: Event = _decode_fields(f"{where}, {kind}", KINDS[kind], fields)
    if isinstance(event, Ioctl):
        _check_ioctl(where, event)
    if isinstance(event, Map) and (event.result < 0 or event.result % _SMALLEST_PAGE):
        raise FormatError(f"{where}: {event.result:#x} cannot be the address of a mapping")
    return event


def _check_ioctl(where: str, event: Ioctl) -> None:
    if not event.memory or event.memory[0].at:
        raise FormatError(f"{where}: the first memory of an ioctl must be its argument")
    for memory in event.memory:
        if len(memory.before) != len(memory.after):
            raise FormatError(
                f"{where}: memory {list(memory.at)} has {len(memory.before)} bytes before and"
                f" {len(memory.after)} after the call"
            )


# The codec follows the types of the dataclasses' fields.


def _encode_fields(value: Any) -> dict[str, Any]:
    names = _field_types(type(value))
    return {name: _encode(getattr(value, name)) for name in names}


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        return _encode_fields(value)
    return value


def _decode_fields(where: str, kind: Any, fields: dict[str, Any]) -> Any:
    types = _field_types(kind)
    if fields.keys() != types.keys():
        raise FormatError(f"{where}: fields {sorted(fields)}, wanted are {sorted(types)}")
    return kind(**{n: _decode(f"{where}, {n}", t, fields[n]) for n, t in types.items()})


def _decode(where: str, wanted: Any, value: Any) -> Any:
    if NoneType in (options := get_args(wanted)):  # `X | None`
        return None if value is None else _decode(where, options[0], value)
    if get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise _mismatch(where, "a list", value)
        return tuple(_decode(where, options[0], item) for item in value)
    if dataclasses.is_dataclass(wanted):
        if not isinstance(value, dict):
            raise _mismatch(where, "an object", value)
        return _decode_fields(where, wanted, value)
    return _DECODERS[wanted](where, value)


def _decode_int(where: str, value: Any) -> int:
    if type(value) is not int:  # a bool is none
        raise _mismatch(where, "a whole number", value)
    if not _SMALLEST <= value <= _LARGEST:
        raise FormatError(f"{where}: a number of more than 64 bits")
    return value


def _decode_text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch(where, "text", value)
    return value


def _decode_bool(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(where, "true or false", value)
    return value


def _decode_bytes(where: str, value: Any) -> bytes:
    try:
        return bytes.fromhex(_decode_text(where, value))
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from error


_DECODERS: Final[dict[type, Callable[[str, Any], Any]]] = {
    int: _decode_int,
    str: _decode_text,
    bool: _decode_bool,
    bytes: _decode_bytes,
}
_TYPES: Final[dict[type, dict[str, Any]]] = {}


def _field_types(kind: type[Any]) -> dict[str, Any]:
    """Name and resolved type of each field; kept, since resolving is slow."""
    if kind not in _TYPES:
        hints = get_type_hints(kind)
        _TYPES[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _TYPES[kind]


def _mismatch(where: str, wanted: str, value: Any) -> FormatError:
    return FormatError(f"{where}: {wanted} is wanted, not {type(value).__name__}")
