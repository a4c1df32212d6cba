"""Where the security processor reads firmware from: 1 MiB of video memory, or memory of a bridge.

Over USB the latter is 200 times as fast to fill. It is on the bus, where page tables of VMID 0 lead
to: Linux has this buffer in the machine's memory as well (psp_sw_init of amdgpu_psp.c, fw_pri_bo).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import FirmwareError
from gpu.core.pagetable import PageTable
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.entries import PAGE, ROOT, Access, format_of
from gpu.drivers.am.pci.ip.gmc import hubs_of
from gpu.drivers.am.pci.vram import FarTables
from gpu.drivers.cleanup import Undo
from gpu.transport.asm24.sram import SRAM_AT, SRAM_SIZE, Sram

_MIB: Final = 1 << 20
SIZE: Final = _MIB
_AT: Final = 0x1000_0000_0000  # no aperture is there


class Buffer:
    """Firmware for one command at a time."""

    def __init__(self, chip: Chip):
        self._chip = chip
        self._place = chip.place("firmware buffer", SIZE, _MIB)

    def put(self, data: bytes) -> int:
        """Where the chip has it, a multiple of 1 MiB. Raises FirmwareError for what is too long."""
        if len(data) > SIZE:
            raise FirmwareError(f"firmware of {len(data)} bytes: {SIZE} fit the buffer")
        self._chip.store(self._place, _whole(data))
        return self._chip.mc(self._place)


class SramBuffer(Buffer):
    """One in the bridge's memory; what that has no room for goes to video memory."""

    def __init__(self, chip: Chip, sram: Sram):
        super().__init__(chip)
        self._sram = sram

    def put(self, data: bytes) -> int:
        """As `Buffer.put`."""
        if not 0 < len(data) <= SRAM_SIZE:
            return super().put(data)
        self._sram.give(0, _whole(data))
        return _AT


def _free(table: PageTable) -> None:
    for address, size in list(table.tables()):
        table.memory.free_table(address, size)


def _whole(data: bytes) -> bytes:
    return data + bytes(align_up(len(data), PAGE) - len(data))


@contextmanager
def firmware_buffer(chip: Chip) -> Iterator[Buffer]:
    """The buffer of a card, for as long as its security processor is given firmware."""
    if chip.sram is None:
        yield Buffer(chip)
        return
    _, hub = hubs_of(chip)
    tables = FarTables(chip.vram, chip.pa_base)
    with Undo() as undo:
        table = PageTable(tables, format_of(chip.gc), ROOT)
        undo.add(_free, table)
        for start in range(0, SIZE, SRAM_SIZE):  # the boot loader reads all of 1 MiB
            table.map(_AT + start, SRAM_AT, SRAM_SIZE, Access.READ | Access.SYSTEM)
        tables.send()
        undo.add(hub.invalidate, 0)
        undo.add(hub.set_context, 0, chip.pa_base + chip.places["root of VMID 0"])
        hub.set_context(0, table.root)
        chip.flush_hdp()
        hub.invalidate(0)
        yield SramBuffer(chip, chip.sram)
