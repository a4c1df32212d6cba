"""The interrupt handler: a ring in the machine's memory, in which the chip says what happened.

Where the chip reaches no memory of the machine, as over USB, the ring is in video memory.

An entry has eight dwords: 0 client 7:0, source 15:8, ring 23:16, VMID 27:24, hub 31; 1 and 2 a time
stamp; 3 PASID 15:0, node 23:16; 4 to 7 are the source's. The chip stores its write pointer, in
bytes, beside the ring; bit 0 of it says that entries were lost.

Sources: ih_v6_0.c, ih_v7_0.c, amdgpu_ih.c (amdgpu_ih_decode_iv_helper), soc15_ih_clientid.h,
ivsrcid/gfx/irqsrcs_gfx_11_0_0.h of Linux 6.12.117.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from gpu.core.errors import Unsupported
from gpu.core.log import get_logger
from gpu.drivers.am.pci.chip import Chip

RING: Final = 256 << 10
_POINTERS: Final = 4096
_ENTRY: Final = 32
_BUS_ADDRESSES, _CHIP_ADDRESSES = 2, 4  # MC_SPACE: which kind the ring's address is of
_OVERFLOW: Final = 1
_STORM_CLIENT: Final = "CLIENT18_IS_STORM_CLIENT"
CLIENT_GFX: Final = 0x0A
"""The graphics core (SOC21_IH_CLIENTID_GFX)."""
SOURCE_SQ, SOURCE_BAD_OPCODE, SOURCE_PRIV_REG, SOURCE_PRIV_INSTRUCTION = 239, 183, 184, 185
_log = get_logger(__name__)


class Entry(NamedTuple):
    """What the chip says happened."""

    client: int
    source: int
    vmid: int
    pasid: int
    context: tuple[int, int, int, int]


class Ring:
    """The ring of one card. Reading it costs no access of the card while nothing happened."""

    def __init__(self, chip: Chip):
        """``chip`` has interrupts started."""
        self._chip = chip
        self._window = chip.interrupts
        self._read = 0

    def entries(self) -> Iterator[Entry]:
        """What came since the last time."""
        written = self._window.read(RING, 4)
        if written == self._read:
            return
        if written & _OVERFLOW:
            _log.warning("%s: interrupts were lost, as the ring was full", self._chip.name)
            control = self._chip.registers.osssys
            control.update("IH_RB_CNTL", WPTR_OVERFLOW_CLEAR=1)
            control.update("IH_RB_CNTL", WPTR_OVERFLOW_CLEAR=0)
            written &= ~_OVERFLOW
            self._read = (written + _ENTRY) % RING  # the oldest that is surely whole
        while self._read != written % RING:
            yield self._entry(self._read)
            self._read = (self._read + _ENTRY) % RING
        self._chip.registers.osssys.set("IH_RB_RPTR", self._read)

    def _entry(self, at: int) -> Entry:
        words = [self._window.read(at + 4 * i, 4) for i in range(8)]
        head = words[0]
        context = (words[4], words[5], words[6], words[7])
        return Entry(head & 0xFF, head >> 8 & 0xFF, head >> 24 & 0xF, words[3] & 0xFFFF, context)


def start_interrupts(chip: Chip) -> None:
    """Gives the chip its ring. Messages are sent where the function lets it; else it is polled."""
    try:
        chip.function.interrupts(1)
        messages = 1
    except Unsupported as error:
        _log.info("%s: %s", chip.name, error.message)
        messages = 0
    (start, space), block = _hold_ring(chip), chip.registers.osssys
    block.update("IH_RB_CNTL", RB_ENABLE=0, ENABLE_INTR=0)
    block.set("IH_RB_RPTR", 0)
    block.set("IH_RB_WPTR", 0)
    block.set("IH_RB_BASE", start >> 8 & 0xFFFF_FFFF)
    block.set("IH_RB_BASE_HI", start >> 40 & 0xFF)
    block.update(
        "IH_RB_CNTL",
        MC_SPACE=space,
        WPTR_OVERFLOW_CLEAR=1,
        WPTR_OVERFLOW_ENABLE=1,
        RB_SIZE=(RING // 4).bit_length() - 1,
        WPTR_WRITEBACK_ENABLE=1,
        MC_SNOOP=1,
        MC_RO=0,
        MC_VMID=0,
        RPTR_REARM=messages,
    )
    block.set("IH_RB_WPTR_ADDR_LO", (start + RING) & 0xFFFF_FFFF)
    block.set("IH_RB_WPTR_ADDR_HI", (start + RING) >> 32 & 0xFFFF)
    block.set("IH_RB_WPTR", 0)
    block.set("IH_RB_RPTR", 0)
    block.set("IH_DOORBELL_RPTR", 0)
    block.update("IH_STORM_CLIENT_LIST_CNTL", **{_STORM_CLIENT: 1})
    block.update("IH_INT_FLOOD_CNTL", FLOOD_CNTL_ENABLE=1)
    block.update("IH_MSI_STORM_CTRL", DELAY=3)
    block.update("IH_RB_CNTL", RB_ENABLE=1, WPTR_OVERFLOW_CLEAR=0)
    block.update("IH_RB_CNTL", WPTR_OVERFLOW_CLEAR=1)
    block.update("IH_RB_CNTL", WPTR_OVERFLOW_CLEAR=0, ENABLE_INTR=messages)


def _hold_ring(chip: Chip) -> tuple[int, int]:
    """Memory for the ring: where the chip has it, and what kind of address that is."""
    size = RING + _POINTERS
    if chip.is_far:
        place = chip.place("interrupts", size)
        chip.vram.clear(place + RING, _POINTERS)
        chip.interrupts = chip.vram.sub(place, size)
        return chip.mc(place), _CHIP_ADDRESSES
    memory = chip.allocate_dma(size)
    chip.interrupts = memory.window
    return memory.pieces[0].address, _BUS_ADDRESSES


def stop_interrupts(chip: Chip) -> None:
    """Has the chip write no more entries."""
    chip.registers.osssys.update("IH_RB_CNTL", RB_ENABLE=0, ENABLE_INTR=0)
