"""Pointers inside the arguments of ioctls: where they are, and how much they point at.

An ioctl takes one structure; many hold pointers to more, which only the caller knows of. A `Ref`
tells of one pointer field. Whoever stands between a driver and the kernel - a recorder, a replay, a
model of the kernel - reads and writes the whole tree with `follow`. Fields are little-endian and
pointers 8 bytes wide, as on every machine this package runs on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gpu.core.errors import InvalidValue

Argument: TypeAlias = bytearray | ctypes.Structure | ctypes.Array[Any]
"""What an ioctl reads and writes: it is changed in place."""

POINTER_SIZE: Final = 8
MAX_BLOCKS: Final = 1 << 16
"""Most blocks that the pointers of one argument may lead to."""
MAX_BYTES: Final = 64 << 20
"""Most bytes that they may hold together."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A pointer field `offset` bytes into a structure, and the block it points at.

    Attributes:
        offset: where the pointer is, in bytes from the start of the structure.
        size: the block's size in bytes. Where it is None, the structure says how many items there
            are: an unsigned number of `count_width` bytes at `count_offset`.
        count_offset: where that number is.
        count_width: its width in bytes.
        item_size: bytes of one item; 1 where the structure tells a size in bytes.
        refs: pointers within the block. Their offsets count from the start of each item where
            items are larger than a byte, from the start of the block otherwise.

    A pointer that is null, or a block of no bytes, leads nowhere.
    """

    offset: int
    size: int | None = None
    count_offset: int = 0
    count_width: int = 4
    item_size: int = 1
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Memory that an argument leads to: the argument itself, or the target of one pointer.

    Attributes:
        at: the offsets of the pointer fields that lead here, the outermost first; empty for the
            argument itself. Those after the first count from the start of the block before.
        address: where it is.
        size: its size in bytes.
        pointers: offsets of the pointer fields within it that `Ref`s tell of.
    """

    at: tuple[int, ...]
    address: int
    size: int
    pointers: tuple[int, ...]

    def read(self) -> bytes:
        """What it holds now."""
        return ctypes.string_at(self.address, self.size)

    def write(self, data: bytes) -> None:
        """Replaces all of it but the pointers. Raises InvalidValue for data of another size."""
        if len(data) != self.size:
            raise InvalidValue(f"{len(data)} bytes for a block of {self.size}")
        start = 0
        for pointer in (*sorted(self.pointers), self.size):
            if start < pointer:
                ctypes.memmove(self.address + start, data[start:pointer], pointer - start)
            start = pointer + POINTER_SIZE


def argument_memory(argument: Argument) -> ctypes.Array[ctypes.c_char]:
    """The argument's own bytes; the result keeps it alive and, if a bytearray, of its size."""
    size = len(argument) if isinstance(argument, bytearray) else ctypes.sizeof(argument)
    return (ctypes.c_char * size).from_buffer(argument)


def follow(memory: ctypes.Array[ctypes.c_char], refs: Sequence[Ref]) -> list[Block]:
    """The argument's block and, depth first, every block that its pointers lead to.

    The pointers must be valid, as for the kernel. Raises InvalidValue for a `Ref` that lies outside
    of its structure, and where the blocks are more or larger than `MAX_BLOCKS` and `MAX_BYTES`.
    """
    found: list[Block] = []
    _Walk(found).visit((), ctypes.addressof(memory), len(memory), len(memory), refs)
    return found


class _Walk:
    """One traversal: what was found so far, and how many bytes that is."""

    def __init__(self, found: list[Block]):
        self._found = found
        self._bytes = 0

    def visit(
        self, at: tuple[int, ...], address: int, size: int, item_size: int, refs: Sequence[Ref]
    ) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES or len(self._found) >= MAX_BLOCKS:
            raise InvalidValue(
                f"the pointers of an ioctl's argument lead to more than {MAX_BYTES} bytes or"
                f" {MAX_BLOCKS} blocks, at pointer {_place(at)}: check the count it is given"
            )
        if not refs:
            self._found.append(Block(at, address, size, ()))
            return
        data = ctypes.string_at(address, size)
        starts = range(0, size - item_size + 1, item_size)
        pointers = tuple(start + ref.offset for start in starts for ref in refs)
        self._found.append(Block(at, address, size, pointers))
        for start in starts:
            item = data[start : start + item_size]
            for ref in refs:
                target, length = _field(item, ref.offset, POINTER_SIZE, at), _length(item, ref, at)
                if target and length:
                    inner = ref.item_size if ref.size is None and ref.item_size > 1 else length
                    self.visit((*at, start + ref.offset), target, length, inner, ref.refs)


def _length(item: bytes, ref: Ref, at: tuple[int, ...]) -> int:
    if ref.size is not None:
        return ref.size
    return ref.item_size * _field(item, ref.count_offset, ref.count_width, at)


def _field(item: bytes, offset: int, width: int, at: tuple[int, ...]) -> int:
    if offset < 0 or offset + width > len(item):
        raise InvalidValue(
            f"a Ref names {width} bytes at {offset} of a structure of {len(item)} bytes"
            f" (pointer {_place(at)}): correct the Ref"
        )
    return int.from_bytes(item[offset : offset + width], "little")


def _place(at: tuple[int, ...]) -> str:
    return " -> ".join(f"{offset:#x}" for offset in at) or "of the argument"
