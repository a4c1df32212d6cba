"""The instructions of a pickle, one after the other, with their arguments.

What they are called and how arguments are written is known from `pickletools` of the standard
library. It reads the rare ones whose argument is a line of text; the others are read here, in a
fraction of its time.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from gpu.core.errors import FormatError
from gpu.tensor.formats.hostbytes import BytesFile

_MAX_INT_BYTES: Final = 512  # a random generator's state is some thousand, in pieces
_MAX_LINE: Final = 1 << 16  # bytes of a number or a name; texts that long are written otherwise


class _Code(NamedTuple):
    """How the argument of an instruction is written.

    Attributes:
        name: what it is called.
        number: the argument, or the number of bytes that it takes.
        content: makes the argument of these bytes.
        line: reads it as lines of text.
    """

    name: str
    number: Struct | None = None
    content: Callable[[bytes], Any] | None = None
    line: Callable[[Any], Any] | None = None


def instructions(file: BytesFile) -> Iterator[tuple[str, Any, int]]:
    """(name, argument, position) of each instruction up to the one that stops, where `file` is
    left.

    Raises FormatError for what is none, is cut off, or has an argument that cannot be read.
    """
    view, at = file.view, file.tell()
    while True:
        start = at
        if start >= len(view):
            raise FormatError("the pickle is malformed: it is cut off")
        code = _CODES.get(view[start])
        if code is None:
            raise FormatError(f"the pickle is malformed: byte {start} is {view[start]:#04x}")
        name, number, content, line = code
        at += 1
        argument: Any = None
        if number is not None:
            if at + number.size > len(view):
                raise FormatError(f"the pickle is malformed: {name} at byte {start} is cut off")
            argument = number.unpack_from(view, at)[0]
            at += number.size
            if content is not None:
                at, argument = _content(code, view, at, argument)
        elif line is not None:
            file.seek(at)
            argument = _line(code, file)
            at = file.tell()
        if name == "STOP":
            file.seek(at)
            yield name, None, start
            return
        yield name, argument, start


def _content(code: _Code, view: memoryview, at: int, size: int) -> tuple[int, Any]:
    """The end and the value of an argument of so many bytes. Raises FormatError."""
    assert code.content is not None
    if not 0 <= size <= len(view) - at:
        raise FormatError(
            f"the pickle is malformed: {code.name} claims {size:,} bytes at {at:,}, there are"
            f" {len(view) - at:,}"
        )
    if code.name.startswith("LONG") and size > _MAX_INT_BYTES:
        raise FormatError(f"an integer of {8 * size:,} bits is not supported (byte {at})")
    try:
        return at + size, code.content(bytes(view[at : at + size]))
    except ValueError as error:
        raise FormatError(f"the pickle is malformed: {code.name} at byte {at}: {error}") from error


def _line(code: _Code, file: BytesFile) -> Any:
    """An argument that is written as text. Raises FormatError."""
    assert code.line is not None
    start = file.tell()
    if code.name != "UNICODE" and len(file.readline(_MAX_LINE)) == _MAX_LINE:
        raise FormatError(f"the pickle is malformed: {code.name} has a long line (byte {start})")
    file.seek(start)
    try:
        return code.line(file)
    except ValueError as error:
        raise FormatError(
            f"the pickle is malformed: {code.name} at byte {start}: {error}"
        ) from error


def _latin1(data: bytes) -> str:
    return data.decode("latin-1")


def _utf8(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_NUMBERS: Final = {
    "uint1": "<B", "uint2": "<H", "int4": "<i", "uint4": "<I", "uint8": "<Q", "float8": ">d",
}  # fmt: skip
_CONTENTS: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "string1": ("<B", _latin1), "string4": ("<i", _latin1),
    "bytes1": ("<B", bytes), "bytes4": ("<I", bytes), "bytes8": ("<Q", bytes),
    "bytearray8": ("<Q", bytearray),
    "unicodestring1": ("<B", _utf8), "unicodestring4": ("<I", _utf8),
    "unicodestring8": ("<Q", _utf8),
    "long1": ("<B", _integer), "long4": ("<i", _integer),
}  # fmt: skip


def _code(known: Any) -> _Code:
    """How `pickletools` says that the argument is written."""
    if known.arg is None:
        return _Code(known.name)
    if known.arg.name in _NUMBERS:
        return _Code(known.name, Struct(_NUMBERS[known.arg.name]))
    if known.arg.name in _CONTENTS:
        number, content = _CONTENTS[known.arg.name]
        return _Code(known.name, Struct(number), content)
    return _Code(known.name, line=known.arg.reader)


_CODES: Final = {ord(known.code): _code(known) for known in pickletools.opcodes}
