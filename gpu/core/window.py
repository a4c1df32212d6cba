"""Windows: spans of device or shared memory, accessed exactly as a driver says.

Registers, doorbells, ring pointers and signals go through :meth:`Window.read` and
:meth:`Window.write` only: one aligned access of the width that was asked for. `MemoryWindow` is
memory mapped into this process; a `TrappedWindow` calls a function for each access, for device
models and for windows over a bus or a socket.

**Why a store is an item of a typed memoryview.** Another agent - a GPU, a thread, a device model -
looks at the word while Python writes it. ``struct.pack_into`` zeroes the bytes before it packs
them: a second thread saw that 0 in 58 million of 132 million reads; a doorbell would ring with it.
It also writes big-endian and multi-field formats byte by byte. A slice or ``memmove`` is a memcpy,
which may use any widths, twice. A ctypes ``.value`` is whole, but CPython's setter also reads the
old word (it serves bit fields too), which a register with side effects may not forgive. An item of
a memoryview of format ``I`` is one 32-bit load or store, and nothing else.

Values are little-endian, as on every GPU and on every host this package has machine code for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, NoReturn, Protocol

from gpu.core.errors import InvalidIndex, InvalidValue

# The memoryview format of an access, by its width in bytes.
_FORMATS: Final[dict[int, Literal["B", "H", "I", "Q"]]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Window(Protocol):
    """A span of memory or registers; offsets and sizes are bytes, widths are 1, 2, 4 or 8."""

    @property
    def size(self) -> int:
        """How many bytes the window spans."""
        ...

    def read(self, offset: int, width: int) -> int:
        """The unsigned value at ``offset``, by exactly one aligned access of ``width`` bytes."""
        ...

    def write(self, offset: int, width: int, value: int) -> None:
        """Store an unsigned value by exactly one aligned access of ``width`` bytes."""
        ...

    def load(self, offset: int, size: int) -> bytes:
        """Copy bytes out in bulk, by any access pattern: not for registers or polled words."""
        ...

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes in in bulk, by any access pattern: not for registers or polled words."""
        ...

    def sub(self, offset: int, size: int) -> Window:
        """The part of ``size`` bytes at ``offset`` as a window of its own."""
        ...


def check_access(window_size: int, offset: int, width: int, start: int = 0) -> None:
    """Refuse an access that a window of ``window_size`` bytes cannot make in one piece.

    ``start`` is the window's own address where its alignment is not known to be 8. Raises
    `InvalidValue` for a width or misalignment, `InvalidIndex` outside the window.
    """
    if width not in _FORMATS:
        raise InvalidValue(f"access of width {width} at offset {offset:#x}: widths are 1, 2, 4, 8")
    check_range(window_size, offset, width)
    if (start + offset) % width:
        at = f" of a window at {start:#x}" if start % width else ""
        raise InvalidValue(
            f"access of width {width} at offset {offset:#x}{at} is misaligned: "
            f"its address must be a multiple of {width}"
        )


def check_value(offset: int, width: int, value: int) -> None:
    """Refuse to store a value that is negative or has more than ``width`` bytes: `InvalidValue`."""
    if value < 0 or value >> (8 * width):
        raise InvalidValue(
            f"value {value:#x} at offset {offset:#x} does not fit width {width}: "
            f"give 0 to {(1 << 8 * width) - 1:#x}"
        )


def check_range(window_size: int, offset: int, size: int) -> None:
    """Refuse bytes outside a window of ``window_size`` bytes: `InvalidIndex`."""
    if offset < 0 or size < 0 or offset + size > window_size:
        raise InvalidIndex(
            f"{size} bytes at offset {offset:#x} are not inside a window of {window_size:#x} bytes"
        )


class MemoryWindow:
    """A `Window` over memory of this process: a mapped BAR, a doorbell page, shared memory.

    ``keep`` is what owns the memory; it lives as long as the window or one of its parts.
    Nothing is read or written by construction. Bulk loads from a BAR are slow (uncached reads).
    """

    def __init__(self, address: int, size: int, keep: object = None):
        if address <= 0 or size <= 0:
            raise InvalidValue(
                f"a memory window of {size} bytes at {address:#x}: both must be positive"
            )
        self.address = address
        self._size = size
        self._keep = keep
        # The items of typed views are aligned to 8 by starting them at an aligned address;
        # the up to 7 bytes too many at either end are never accessed.
        first = address & ~7
        self._skew = address - first
        length = (self._skew + size + 7) & ~7
        whole = memoryview((ctypes.c_ubyte * length).from_address(first)).cast("B")
        self._views = {width: whole.cast("B").cast(code) for width, code in _FORMATS.items()}
        self.memory = whole[self._skew : self._skew + size]  # for bulk copies only

    @classmethod
    def over(cls, buffer: bytearray | memoryview) -> MemoryWindow:
        """A window over a writable contiguous buffer, which it keeps (and keeps from resizing)."""
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise InvalidValue("a window needs a writable buffer: copy it into a bytearray")
        anchor = (ctypes.c_ubyte * view.nbytes).from_buffer(view)
        return cls(ctypes.addressof(anchor), view.nbytes, keep=anchor)

    @property
    def size(self) -> int:
        """How many bytes the window spans."""
        return self._size

    def read(self, offset: int, width: int) -> int:
        """One aligned load of ``width`` bytes; errors as `check_access` raises them."""
        position = self._skew + offset
        view = self._views.get(width)
        if view is None or offset < 0 or offset + width > self._size or position % width:
            self._refuse(offset, width)
        return view[position // width]

    def write(self, offset: int, width: int, value: int) -> None:
        """One aligned store of ``width`` bytes; errors as of `check_access` and `check_value`.

        An item of a typed memoryview: the module says why nothing else will do.
        """
        position = self._skew + offset
        view = self._views.get(width)
        if view is None or offset < 0 or offset + width > self._size or position % width:
            self._refuse(offset, width)
        try:
            view[position // width] = value
        except ValueError:
            check_value(offset, width, value)
            raise

    def _refuse(self, offset: int, width: int) -> NoReturn:
        check_access(self._size, offset, width, self.address)
        raise AssertionError(f"{self} refused width {width} at {offset:#x} without a reason")

    def load(self, offset: int, size: int) -> bytes:
        """Copy ``size`` bytes out; `InvalidIndex` outside the window."""
        check_range(self._size, offset, size)
        return self.memory[offset : offset + size].tobytes()

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copy a contiguous buffer in; `InvalidIndex` outside the window."""
        source = memoryview(data).cast("B")
        check_range(self._size, offset, source.nbytes)
        self.memory[offset : offset + source.nbytes] = source

    def sub(self, offset: int, size: int) -> MemoryWindow:
        """The part of ``size`` bytes at ``offset``; `InvalidIndex` outside the window."""
        check_range(self._size, offset, size)
        return MemoryWindow(self.address + offset, size, self._keep)

    def __repr__(self) -> str:
        return f"MemoryWindow({self.address:#x}, {self._size:#x})"


class TrappedWindow:
    """A `Window` of which every access calls a function: a model's registers, or those over a bus.

    Bulk copies are made of aligned accesses, each the widest that fits, up to ``widest`` bytes.

    Args:
        size: bytes of the window.
        read: is given offset and width, and returns the value.
        write: is given offset, width and value.
        widest: the widest access of a bulk copy: 4 for most registers.
        base: what is added to offsets before they are given.
    """

    def __init__(
        self,
        size: int,
        read: Callable[[int, int], int],
        write: Callable[[int, int, int], None],
        widest: int = 8,
        base: int = 0,
    ):
        self._size = size
        self._read = read
        self._write = write
        self._widest = widest
        self._base = base

    @property
    def size(self) -> int:
        """How many bytes the window spans."""
        return self._size

    def read(self, offset: int, width: int) -> int:
        """One call; errors as `check_access` raises them, and what the function raises."""
        check_access(self._size, offset, width, self._base)
        value = self._read(self._base + offset, width)
        check_value(offset, width, value)
        return value

    def write(self, offset: int, width: int, value: int) -> None:
        """One call; errors as of `check_access` and `check_value`, and what the function raises."""
        check_access(self._size, offset, width, self._base)
        check_value(offset, width, value)
        self._write(self._base + offset, width, value)

    def load(self, offset: int, size: int) -> bytes:
        """A call for each access of the range; `InvalidIndex` outside the window."""
        check_range(self._size, offset, size)
        return b"".join(
            self.read(at, width).to_bytes(width, "little") for at, width in self._cut(offset, size)
        )

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """A call for each access of the range; `InvalidIndex` outside the window."""
        source = memoryview(data).cast("B")
        check_range(self._size, offset, source.nbytes)
        for at, width in self._cut(offset, source.nbytes):
            part = source[at - offset : at - offset + width]
            self.write(at, width, int.from_bytes(part, "little"))

    def sub(self, offset: int, size: int) -> TrappedWindow:
        """The part of ``size`` bytes at ``offset``; `InvalidIndex` outside the window."""
        check_range(self._size, offset, size)
        base = self._base + offset
        return TrappedWindow(size, self._read, self._write, self._widest, base)

    def _cut(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Offset and width of each access of a range."""
        end = offset + size
        while offset < end:
            width = self._widest
            while (self._base + offset) % width or offset + width > end:
                width //= 2
            yield offset, width
            offset += width


class WindowAccess(NamedTuple):
    """One access as a `RecordingWindow` saw it, after it succeeded.

    ``width`` is the size in bytes; ``value`` is bytes for the bulk kinds.
    """

    kind: Literal["read", "write", "load", "store"]
    offset: int
    width: int
    value: int | bytes


class RecordingWindow:
    """A `Window` that tells ``sink`` every access to ``inner``, for traces.

    Parts made by ``sub`` record into the same sink, with offsets from the outermost window.
    """

    def __init__(self, inner: Window, sink: Callable[[WindowAccess], None], base: int = 0):
        self._inner = inner
        self._sink = sink
        self._base = base

    @property
    def size(self) -> int:
        """How many bytes the window spans."""
        return self._inner.size

    def read(self, offset: int, width: int) -> int:
        """Read from the inner window and record the value."""
        value = self._inner.read(offset, width)
        self._sink(WindowAccess("read", self._base + offset, width, value))
        return value

    def write(self, offset: int, width: int, value: int) -> None:
        """Write to the inner window and record the value."""
        self._inner.write(offset, width, value)
        self._sink(WindowAccess("write", self._base + offset, width, value))

    def load(self, offset: int, size: int) -> bytes:
        """Load from the inner window and record the bytes."""
        data = self._inner.load(offset, size)
        self._sink(WindowAccess("load", self._base + offset, size, data))
        return data

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Store to the inner window and record the bytes."""
        self._inner.store(offset, data)
        copy = bytes(data)
        self._sink(WindowAccess("store", self._base + offset, len(copy), copy))

    def sub(self, offset: int, size: int) -> RecordingWindow:
        """A part that records into the same sink."""
        return RecordingWindow(self._inner.sub(offset, size), self._sink, self._base + offset)
