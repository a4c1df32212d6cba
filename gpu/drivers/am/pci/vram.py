"""Video memory: which of it is whose, and how the host stores there.

From its beginning on lies the boot area: what firmware is given and works with, in places that are
the same at each boot, so that a card that was left running finds it again; nothing else is put
there. Behind it anything can be allocated, up to 64 MiB before the end, where the chip's own tables
and what it keeps for itself are. Only what the host sees is used: with a BAR that is smaller than
the memory that is a part of it.
"""

from __future__ import annotations

from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import InvalidValue, OutOfMemory
from gpu.core.tlsf import Tlsf
from gpu.core.window import Window

PAGE: Final = 4096
BOOT_SIZE: Final = 64 << 20
"""Bytes of the boot area."""
RESERVED_AT_END: Final = 64 << 20
_CHUNK: Final = 1 << 20


class Vram:
    """The memory of one card. Addresses are offsets from its beginning.

    Attributes:
        size: bytes that there are.
        usable: where what can be allocated ends.
        window: what the host sees, from the beginning on.
        pool: of what can be allocated.
    """

    def __init__(self, size: int, window: Window):
        """Raises OutOfMemory where there is no room behind the boot area."""
        self.size = size
        self.window = window
        end = min(window.size, size - RESERVED_AT_END)
        self.usable = end - end % PAGE
        if self.usable <= BOOT_SIZE:
            raise OutOfMemory(
                f"the host sees {window.size:#x} of {size:#x} bytes of video memory, of which"
                f" {BOOT_SIZE:#x} are for booting and {RESERVED_AT_END:#x} at the end the chip's:"
                " enable Resizable BAR in the machine's firmware, or `gpu pci take --resize`"
            )
        self.pool = Tlsf(BOOT_SIZE, self.usable - BOOT_SIZE, PAGE)
        self._booted = 0

    @property
    def in_use(self) -> int:
        """Bytes that are allocated, but the boot area."""
        return self.pool.in_use

    def place(self, size: int, align: int = PAGE) -> int:
        """The next place of the boot area; the same calls in the same order give the same places.

        Its bytes are as they were. Raises OutOfMemory where the area is full.
        """
        start = align_up(self._booted, align)
        end = align_up(start + size, PAGE)
        if size < 1 or end > BOOT_SIZE:
            raise OutOfMemory(
                f"boot area: {size:#x} bytes aligned to {align:#x}, {self._booted:#x} of"
                f" {BOOT_SIZE:#x} are in use"
            )
        self._booted = end
        return start

    def allocate(self, size: int, align: int = PAGE) -> int:
        """Zeroed memory of whole pages. Raises OutOfMemory, InvalidValue."""
        start = self.take(size, align)
        self.clear(start, self.pool.size_of(start))
        return start

    def take(self, size: int, align: int = PAGE) -> int:
        """As `allocate`; its bytes are as they were."""
        return self.pool.alloc(size, align)

    def free(self, start: int) -> None:
        """Takes back what `allocate` gave; nothing uses it any more. Raises InvalidValue."""
        self.pool.free(start)

    def clear(self, start: int, size: int) -> None:
        """Stores zeros."""
        zeros = bytes(min(size, _CHUNK))
        for at in range(start, start + size, len(zeros) or 1):
            self.window.store(at, zeros[: start + size - at])

    def sub(self, start: int, size: int) -> Window:
        """The host's view of a part."""
        if start % PAGE:
            raise InvalidValue(f"video memory at {start:#x}: whole pages are seen")
        return self.window.sub(start, size)


class VramTables:
    """The `gpu.core.pagetable.TableMemory` of tables in video memory."""

    def __init__(self, vram: Vram, base: int):
        """``base`` is what entries have added to addresses."""
        self._vram = vram
        self._base = base

    def read64(self, address: int) -> int:
        """Eight bytes of a table."""
        return self._vram.window.read(address - self._base, 8)

    def write64(self, address: int, value: int) -> None:
        """Stores eight bytes in one access."""
        self._vram.window.write(address - self._base, 8, value)

    def alloc_table(self, size: int) -> int:
        """A zeroed table. Raises OutOfMemory."""
        return self._base + self._vram.allocate(size, max(size, PAGE))

    def free_table(self, address: int, size: int) -> None:
        """Takes one back."""
        self._vram.free(address - self._base)

    def send(self) -> None:
        """All that was stored is in video memory, behind a flush of the host's data path."""


class FarTables(VramTables):
    """Tables over a bus such as USB: what they hold is known here, and stores go in runs."""

    def __init__(self, vram: Vram, base: int):
        super().__init__(vram, base)
        self._held: dict[int, bytearray] = {}  # by page
        self._runs: list[tuple[int, bytearray]] = []  # where they begin, in the order of stores

    def read64(self, address: int) -> int:
        """Eight bytes of a table."""
        page, offset = divmod(address, PAGE)
        return int.from_bytes(self._held[page][offset : offset + 8], "little")

    def write64(self, address: int, value: int) -> None:
        """Stores eight bytes, with the next `send`."""
        page, offset = divmod(address, PAGE)
        data = value.to_bytes(8, "little")
        self._held[page][offset : offset + 8] = data
        if self._runs and address == self._runs[-1][0] + len(self._runs[-1][1]):
            self._runs[-1][1].extend(data)
        else:
            self._runs.append((address, bytearray(data)))

    def alloc_table(self, size: int) -> int:
        """A zeroed table. Raises OutOfMemory."""
        address = super().alloc_table(size)
        for start in range(address, address + size, PAGE):
            self._held[start // PAGE] = bytearray(PAGE)
        return address

    def free_table(self, address: int, size: int) -> None:
        """Takes one back."""
        super().free_table(address, size)
        for start in range(address, address + size, PAGE):
            del self._held[start // PAGE]

    def send(self) -> None:
        """In the order of stores, so that nothing leads to what is not there yet."""
        runs, self._runs = self._runs, []
        for address, data in runs:
            self._vram.window.store(address - self._base, data)
