"""Reading MessagePack, as much of it as metadata of code objects has, strictly.

The format is that of msgpack's spec.md. Numbers with fractions, byte strings and extensions do not
occur there and are refused, as is everything that does not end where its container does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from gpu.core.errors import FormatError

Value: TypeAlias = "bool | int | str | list[Value] | dict[str, Value] | None"
_MAX_DEPTH: Final = 16


def unpack(data: bytes, what: str) -> Value:
    """The one value that some bytes are; ``what`` they are is for messages.

    Raises FormatError, naming the offset, for anything else.
    """
    reader = _Reader(data, what)
    value = reader.value(0)
    if reader.at != len(data):
        raise reader.error(f"{len(data) - reader.at} bytes follow the value")
    return value


class _Reader:
    """Walks over the bytes; ``at`` is where it is."""

    def __init__(self, data: bytes, what: str):
        self.data = data
        self.what = what
        self.at = 0

    def error(self, message: str) -> FormatError:
        return FormatError(f"{self.what}, byte {self.at:#x}: {message}")

    def value(self, depth: int) -> Value:
        if depth > _MAX_DEPTH:
            raise self.error(f"values nested more than {_MAX_DEPTH} deep")
        tag = self._number(1)
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._map(tag & 0xF, depth)
        if tag < 0xA0:
            return self._list(tag & 0xF, depth)
        if tag < 0xC0:
            return self._text(tag & 0x1F)
        if tag >= 0xE0:
            return tag - 0x100
        read = _TAGS.get(tag)
        if read is None:
            self.at -= 1
            raise self.error(f"tag {tag:#x}, which metadata does not have")
        return read(self, depth)

    def sized(self, width: int) -> int:
        return self._number(width)

    def signed(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big", signed=True)

    def _number(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.error(f"{size} bytes wanted, {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"no text: {error.reason}") from error

    def _list(self, count: int, depth: int) -> list[Value]:
        return [self.value(depth + 1) for _ in range(self._fitting(count))]

    def _map(self, count: int, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for _ in range(self._fitting(2 * count) // 2):
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in found:
                raise self.error(f"key {key!r}: texts that differ are wanted")
            found[key] = self.value(depth + 1)
        return found

    def _fitting(self, count: int) -> int:
        """A count of values, each of at least a byte, that the rest can hold."""
        if count > len(self.data) - self.at:
            raise self.error(f"{count} values wanted, {len(self.data) - self.at} bytes are left")
        return count


_TAGS: Final[dict[int, Callable[[_Reader, int], Value]]] = {
    0xC0: lambda reader, depth: None,
    0xC2: lambda reader, depth: False,
    0xC3: lambda reader, depth: True,
    0xCC: lambda reader, depth: reader.sized(1),
    0xCD: lambda reader, depth: reader.sized(2),
    0xCE: lambda reader, depth: reader.sized(4),
    0xCF: lambda reader, depth: reader.sized(8),
    0xD0: lambda reader, depth: reader.signed(1),
    0xD1: lambda reader, depth: reader.signed(2),
    0xD2: lambda reader, depth: reader.signed(4),
    0xD3: lambda reader, depth: reader.signed(8),
    0xD9: lambda reader, depth: reader._text(reader.sized(1)),
    0xDA: lambda reader, depth: reader._text(reader.sized(2)),
    0xDB: lambda reader, depth: reader._text(reader.sized(4)),
    0xDC: lambda reader, depth: reader._list(reader.sized(2), depth),
    0xDD: lambda reader, depth: reader._list(reader.sized(4), depth),
    0xDE: lambda reader, depth: reader._map(reader.sized(2), depth),
    0xDF: lambda reader, depth: reader._map(reader.sized(4), depth),
}
