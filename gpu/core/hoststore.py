"""Stores that a device sees as they are meant: native, in order, each in one piece.

Python cannot fence, and its own copies may use any width. The functions here are a few hundred
bytes of machine code per architecture (`gpu/core/hoststore_code.py`, made by tools/hoststore.py):

- `fence()` orders all stores before it, also write-combined ones, before all stores after it, as
  any device sees them: ``sfence`` on x86-64, ``dsb st`` on arm64 (``dmb ish`` does not reach
  devices). On x86-64 stores to ordinary memory and to an uncached doorbell are ordered anyway.
- `kick(...)` publishes a submission in one call; `kick_block` takes its arguments from memory.
- `patch(...)` writes values into prepared command segments, see `patch_table`; `patch_block`
  takes its arguments from memory.
- `copy_wc(...)` copies to write-combined memory by wide stores that leave no trace in the cache.
- `spin(...)` polls a word with the GIL released.

`fence`, `kick` and `patch` keep the GIL: they are over before another thread could use it, and no
Python exception falls in between. Arguments are positional integers; addresses must be valid and
aligned to the width of the access: nothing is checked but what is said here, and a wrong address
is a crash. On other processors, and where the system forbids machine code, every function raises
Unsupported.
"""

from __future__ import annotations

import ctypes
import enum
import platform
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.core.execmem import CodeBuffer
from gpu.core.hoststore_code import CODE, ENTRIES

_ARCHITECTURES: Final = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_LARGE_COPY: Final = 1 << 16  # bytes: some microseconds, worth releasing the GIL

KICK_BLOCK: Final = struct.Struct("<13Q")
"""The arguments of `kick` as `kick_block` takes them.

First those that change with each submission, `KICK_CHANGES` of them: put, template and its dwords,
values of write pointer and doorbell, address and value of what was submitted last. Then ring and
its dwords, address and width of write pointer and of doorbell.
"""
KICK_CHANGES: Final = struct.Struct("<7Q")
PATCH_BLOCK: Final = struct.Struct("<4Q")
"""The arguments of `patch`, in order, as `patch_block` takes them."""
PATCH_ROW: Final = np.dtype(
    [
        ("offset", "<u4"),
        ("segment", "<u2"),
        ("width", "u1"),
        ("shift", "u1"),
        ("symbol", "<u4"),
        ("position", "u1"),
        ("unused", "u1", (3,)),
        ("mask", "<u8"),
        ("addend", "<i8"),
    ]
)
"""A row of `patch`'s table, 32 bytes; see `PatchRow` for the fields."""


class SpinOp(enum.IntEnum):
    """When `spin` is satisfied; comparisons are unsigned."""

    EQUAL = 0
    DIFFERENT = 1
    AT_LEAST = 2


class PatchRow(NamedTuple):
    """``((value of symbol + addend) >> shift) & mask`` goes into bits of a little-endian word.

    Attributes:
        segment: index of the segment.
        offset: of the word in the segment, in bytes, a multiple of `width`.
        width: of the word: 1, 2, 4 or 8 bytes.
        symbol: index of the value.
        addend: is added modulo 2**64, -2**63 to 2**63 - 1.
        shift: right shift of the sum, 0 to 63.
        mask: bits of the shifted sum that are used; None for all that fit above `position`.
        position: bit of the word that bit 0 of the masked sum goes to. Bits of the word that
            ``mask << position`` does not cover stay as they are.
    """

    segment: int
    offset: int
    width: int
    symbol: int
    addend: int = 0
    shift: int = 0
    mask: int | None = None
    position: int = 0


def patch_table(
    rows: Iterable[PatchRow], segment_sizes: Sequence[int], symbols: int
) -> npt.NDArray[np.void]:
    """The table for `patch`: an array of `PATCH_ROW`; its address is ``table.ctypes.data``.

    Args:
        rows: in the order they are to be applied.
        segment_sizes: bytes of each segment. Their addresses must be multiples of 8.
        symbols: how many values there will be.

    Raises InvalidValue and InvalidIndex, naming the row, for what would write outside of a segment.
    """
    packed = []
    for number, row in enumerate(rows):
        _check_row(number, row, segment_sizes, symbols)
        mask = _full_mask(row) if row.mask is None else row.mask
        head = (row.offset, row.segment, row.width, row.shift, row.symbol, row.position)
        packed.append((*head, (0, 0, 0), mask, row.addend))
    return np.array(packed, PATCH_ROW)


def patch(segments_address: int, table_address: int, n: int, values_address: int) -> None:
    """Applies `n` rows of a table that `patch_table` made, in order: what replaying consists of.

    `segments_address` points at the address (u64) of each segment, `values_address` at the value
    (u64) of each symbol. Each row is one store; the target is read only where bits of it are to
    stay. There is no fence at the end.
    """
    patch_block(PATCH_BLOCK.pack(segments_address, table_address, n, values_address))


def kick(
    ring_address: int,
    ring_dwords: int,
    put: int,
    template_address: int,
    n_dwords: int,
    wptr_address: int,
    wptr_value: int,
    wptr_width: int,
    doorbell_address: int,
    doorbell_value: int,
    doorbell_width: int,
    last_submitted_address: int,
    last_value: int,
) -> None:
    """Publishes commands in a ring, all of it in one native call. In this order:

    1. `n_dwords` of the template are copied into the ring from dword `put` (modulo the ring's size)
       on, wrapping at its end;
    2. fence; the write pointer is stored; fence; the doorbell is stored, each by one store of 1, 2,
       4 or 8 bytes. Another width stops the process, and so does a ring of 0 dwords;
    3. `last_value` is stored as 8 bytes: what was submitted last.

    An address of 0 leaves out the write pointer, the doorbell or the last value. All are unsigned
    numbers of 64 bits.
    """
    kick_block(
        KICK_BLOCK.pack(
            put,
            template_address,
            n_dwords,
            wptr_value,
            doorbell_value,
            last_submitted_address,
            last_value,
            ring_address,
            ring_dwords,
            wptr_address,
            wptr_width,
            doorbell_address,
            doorbell_width,
        )
    )


def spin(address: int, width: int, value: int, op: SpinOp, limit_ns: int) -> bool:
    """Reads a word of 1, 2, 4 or 8 bytes until it compares to `value`, with the GIL released.

    Returns whether it did before `limit_ns` nanoseconds of the monotonic clock passed; a limit of 0
    reads once. What other memory holds is read after the word. Python signals wait until the end:
    keep limits in the order of 50 us. Raises InvalidValue for a bad width or limit.
    """
    if width not in (1, 2, 4, 8) or address % width or limit_ns < 0:
        raise InvalidValue(
            f"spinning on {width} bytes at {address:#x} for {limit_ns} ns: the width must be 1, 2,"
            " 4 or 8 and divide the address, the limit at least 0"
        )
    clock = time.CLOCK_MONOTONIC
    return bool(_spin(address, width, value, op, limit_ns, _clock_gettime(), clock))


def copy_wc(dst: int, src: int, size: int) -> None:
    """Copies `size` bytes between addresses, and fences.

    For write-combined targets, such as a device's memory over a bus: stores are as wide as the
    processor's basic vectors, in ascending order, and bytes at both ends until `dst` is aligned to
    16. The ranges must not overlap. Releases the GIL from 64 KiB on. Raises InvalidValue for a
    negative size.
    """
    if size < 0:
        raise InvalidValue(f"copying {size} bytes; the size must be at least 0")
    (_copy_large if size >= _LARGE_COPY else _copy_small)(dst, src, size)


def _check_row(number: int, row: PatchRow, segment_sizes: Sequence[int], symbols: int) -> None:
    name = f"row {number} of a patch table"
    for what, index, count in (
        ("segment", row.segment, min(len(segment_sizes), 1 << 16)),
        ("symbol", row.symbol, min(symbols, 1 << 32)),
    ):
        if not 0 <= index < count:
            raise InvalidIndex(f"{name}: {what} {index}; there are {count}")
    if row.width not in (1, 2, 4, 8):
        raise InvalidValue(f"{name}: a word of {row.width} bytes; it must have 1, 2, 4 or 8")
    size = min(segment_sizes[row.segment], 1 << 32)
    if row.offset < 0 or row.offset % row.width or row.offset + row.width > size:
        raise InvalidIndex(
            f"{name}: {row.width} bytes at {row.offset:#x} of segment {row.segment}, which has"
            f" {size}; the offset must be a multiple of the width"
        )
    if not 0 <= row.shift < 64 or not 0 <= row.position < 8 * row.width:
        raise InvalidValue(
            f"{name}: shift {row.shift}, position {row.position}; they must be 0 to 63 and 0 to"
            f" {8 * row.width - 1}"
        )
    if row.mask is not None and not 0 < row.mask <= _full_mask(row):
        raise InvalidValue(
            f"{name}: mask {row.mask:#x}; from bit {row.position} of a word of {row.width} bytes"
            f" it must be 1 to {_full_mask(row):#x}"
        )
    if not -(1 << 63) <= row.addend < 1 << 63:
        raise InvalidValue(f"{name}: addend {row.addend:#x}; it must fit 64 bits with a sign")


def _full_mask(row: PatchRow) -> int:
    return (1 << (8 * row.width - row.position)) - 1


@cache
def _clock_gettime() -> int | None:
    """The address of the C library's clock_gettime."""
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value


def _architecture() -> str:
    machine = platform.machine()
    if machine not in _ARCHITECTURES or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise Unsupported(
            f"ordered stores for devices are not known on {machine}; x86-64 and arm64 are"
        )
    return _ARCHITECTURES[machine]


def _bind(name: str, arguments: int, result: Any = None, *, release_gil: bool = False) -> Any:
    """A function of the native code that takes so many integers; where there is none, a refusal."""
    if isinstance(_code, Unsupported):
        return _refusal(_code)
    factory = ctypes.CFUNCTYPE if release_gil else ctypes.PYFUNCTYPE
    prototype = factory(result, *[ctypes.c_void_p] * arguments)
    return prototype(_code.address + ENTRIES[_architecture()][name])


def _refusal(reason: Unsupported) -> Callable[..., NoReturn]:
    def refuse(*_: int) -> NoReturn:
        raise reason

    return refuse


def _load() -> CodeBuffer | Unsupported:
    try:
        return CodeBuffer(CODE[_architecture()])
    except Unsupported as reason:
        return reason


_code: Final = _load()
fence: Final[Callable[[], None]] = _bind("fence", 0)
"""Orders all stores before it before all stores after it, for every device."""
kick_block: Final[Callable[[int | bytes], None]] = _bind("kick", 1)
"""`kick` with a `KICK_BLOCK` in memory: its address, or the bytes."""
patch_block: Final[Callable[[int | bytes], None]] = _bind("patch", 1)
"""`patch` with its arguments as 4 u64 in memory: their address, or the bytes."""
_copy_small = _bind("copy_wc", 3)
_copy_large = _bind("copy_wc", 3, release_gil=True)
_spin = _bind("spin", 7, ctypes.c_uint32, release_gil=True)
