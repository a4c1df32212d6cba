"""C structures by a line of text: names, offsets, sizes in bytes.

The driver's own structures are classes with annotations; these are tables, so that a wrong offset
on one side meets the right one on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Layout:
    """A structure: "name@offset" of 4 bytes, or "name@offset:size"; what has no name is padding.

    Attributes:
        size: of the whole, in bytes.
        fields: offset and size by name.
    """

    name: str
    size: int
    text: str
    fields: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = {}
        for part in self.text.split():
            name, _, where = part.partition("@")
            offset, _, size = where.partition(":")
            fields[name] = int(offset), int(size or 4)
        assert all(at + size <= self.size for at, size in fields.values()), self.name
        object.__setattr__(self, "fields", fields)

    def parse(self, data: bytes) -> Record:
        """The structure that starts at the beginning of some bytes, which may be more or fewer."""
        return Record(self, bytearray(data[: self.size].ljust(self.size, b"\0")))


class Record:
    """One structure's bytes; `record["name"]` is a little-endian number, `raw` gives bytes."""

    __slots__ = ("data", "layout")

    def __init__(self, layout: Layout, data: bytearray | None = None):
        self.layout = layout
        self.data = bytearray(layout.size) if data is None else data

    def __getitem__(self, name: str) -> int:
        return int.from_bytes(self.raw(name), "little")

    def __setitem__(self, name: str, value: int) -> None:
        at, size = self.layout.fields[name]
        self.data[at : at + size] = value.to_bytes(size, "little")

    def signed(self, name: str) -> int:
        """A number that may be negative."""
        return int.from_bytes(self.raw(name), "little", signed=True)

    def raw(self, name: str) -> bytes:
        """A field's bytes."""
        at, size = self.layout.fields[name]
        return bytes(self.data[at : at + size])

    def put(self, name: str, data: bytes) -> None:
        """Sets a field's bytes; what is shorter is filled with zeros."""
        at, size = self.layout.fields[name]
        assert len(data) <= size, f"{len(data)} bytes into {name} of {size}"
        self.data[at : at + size] = data.ljust(size, b"\0")

    def __repr__(self) -> str:
        small = [f"{n}={self[n]:#x}" for n, (_, size) in self.layout.fields.items() if size <= 8]
        return f"{self.layout.name}({', '.join(small)})"
