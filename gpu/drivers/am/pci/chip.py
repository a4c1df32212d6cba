"""A card while it is brought up, and while it runs: its function, registers, memory, clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpu.core.errors import DeviceLost, Unsupported
from gpu.core.firmware import load as load_firmware
from gpu.core.log import get_logger
from gpu.core.wait import Waiter
from gpu.core.window import MemoryWindow, Window
from gpu.drivers.am.firmware import FirmwareSet
from gpu.drivers.am.pci.discovery import Discovery
from gpu.drivers.am.pci.entries import PAGE
from gpu.drivers.am.pci.registers import Block, Registers
from gpu.drivers.am.pci.vram import Vram
from gpu.drivers.am.target import Version
from gpu.drivers.boot import BootError
from gpu.drivers.card import ALL_ONES, Load, PciCard
from gpu.transport.asm24.sram import Sram
from gpu.transport.pci.function import PciFunction

VRAM_BAR, DOORBELL_BAR, MMIO_BAR = 0, 2, 5
_log = get_logger(__name__)


class Chip(PciCard):
    """What the steps of a boot work on, and leave for queues and memory.

    Attributes: those of `PciCard`, and
        state: what was found on the card: ``cold`` or ``alive``.
        fb_base: where the chip's own addresses have video memory, which is an aperture of VMID 0.
        pa_base: what is added to an offset in video memory in entries of page tables.
        places: of the boot area, by name; and the bus address of the page for faults (``dummy``).
        is_far: neither side has the other's memory mapped, as over USB: what both see is in VRAM.
        sram: memory that both sides reach then, in whole sectors, if there is any.
        starts: where firmware of the command processor's parts begins to run.
    """

    discovery: Discovery
    registers: Registers
    vram: Vram
    doorbells: Window
    firmware: FirmwareSet
    interrupts: Window
    state: str = ""
    fb_base: int = 0
    fb_end: int = 0
    pa_base: int = 0

    def __init__(
        self,
        function: PciFunction,
        waiter: Waiter,
        *,
        load: Load = load_firmware,
        is_far: bool = False,
        sram: Sram | None = None,
    ):
        """``load`` gives what a firmware file holds; ``sram`` is memory of a bridge before it."""
        super().__init__(function, waiter, MMIO_BAR, load)
        self.is_far = is_far
        self.sram = sram
        self._flush: MemoryWindow | None = None
        self.places: dict[str, int] = {}
        self.starts: dict[str, int] = {}

    @property
    def gc(self) -> Version:
        """The version of the graphics core."""
        return self.registers.gc.ip.version

    # Registers

    def register_name(self, offset: int) -> str | None:
        """As `PciCard`; before the tables are read there are no names."""
        known = getattr(self, "registers", None)
        return known.name_of(offset) if isinstance(known, Registers) else None

    def wait(self, block: Block, name: str, bits: int, wanted: int, shift: int = 0) -> int:
        """Re-reads a register until some of its bits are as wanted, within the step's time.

        Raises BootTimeout, and DeviceLost where the card is gone.
        """
        return self.wait_value(
            lambda: block.get(name, shift),
            lambda value: value != ALL_ONES and value & bits == wanted,
            f"{block.ip.name}.{name}" + (f"+{shift}" if shift else ""),
            f"{wanted:#x} in bits {bits:#x}",
        )

    def wait_other(self, block: Block, name: str, than: int) -> int:
        """Re-reads a register until it has another value; raises as `wait`."""
        return self.wait_value(
            lambda: block.get(name),
            lambda value: value not in (than, ALL_ONES),
            f"{block.ip.name}.{name}",
            f"another value than {than:#x}",
        )

    def wait_at(self, address: int, title: str, bit: int, seconds: float) -> None:
        """Re-reads a register that has no name yet until a bit is set; raises as `wait`."""
        self.wait_value(
            lambda: self.mmio.read(address, 4),
            lambda value: value != ALL_ONES and bool(value & bit),
            *(title, f"{bit:#x} in bits {bit:#x}", seconds),
        )

    def wait_memory(self, offset: int, wanted: int, what: str) -> None:
        """Re-reads a dword of video memory until it is as wanted; raises as `wait`."""
        window = self.vram.window
        self.wait_value(lambda: window.read(offset, 4), lambda v: v == wanted, what, f"{wanted:#x}")

    def fail(self, block: Block, name: str, wanted: str, more: str = "") -> BootError:
        """The error that a register is not as wanted."""
        return BootError(self.step, f"{block.ip.name}.{name}", block.get(name), wanted, more)

    @contextlib.contextmanager
    def selected(self, me: int = 0, pipe: int = 0, queue: int = 0, vmid: int = 0) -> Iterator[None]:
        """Within the block registers of the core that are there many times are those of one."""
        core = self.registers.gc
        fields = {"MEID": me, "PIPEID": pipe, "QUEUEID": queue, "VMID": vmid}
        core.set("GRBM_GFX_CNTL", core.fields("GRBM_GFX_CNTL", **fields))
        try:
            yield
        finally:
            core.set("GRBM_GFX_CNTL", 0)

    # Memory

    def mc(self, offset: int) -> int:
        """The chip's own address of video memory, in VMID 0."""
        return self.fb_base + offset

    def place(self, name: str, size: int, align: int = PAGE) -> int:
        """A place in the boot area, by its name; the same one when asked again."""
        if name not in self.places:
            self.places[name] = self.vram.place(size, align)
        return self.places[name]

    def store(self, offset: int, data: bytes) -> None:
        """Stores in video memory, and sees to it that the chip reads it."""
        self.vram.window.store(offset, data)
        self.flush_hdp()

    def see(self, bar: int, size: int) -> Window:
        """The beginning of a BAR."""
        function = self.function
        return function.window(bar).sub(0, size) if self.is_far else function.map(bar, 0, size)

    def map_flush(self) -> None:
        """Finds the page in which the register is that empties the host's data path."""
        at = self.registers.nbif.get("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL")
        try:
            page = self.function.map(MMIO_BAR, at - at % PAGE, PAGE)
        except Unsupported:  # over a socket; through the registers then
            _log.info("%s: registers cannot be mapped", self.name)
            self._flush_at = at
            return
        self._flush, self._flush_at = page, at % PAGE

    def flush_hdp(self) -> None:
        """Pushes what the host stored in video memory out of the bridge.

        Linux reads the size of memory afterwards, as reading back the page itself causes trouble on
        some machines (hdp_v6_0.c): so the store has arrived.
        """
        self.post_flush()
        self.registers.nbif.get("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE")

    def post_flush(self) -> None:
        """The same without waiting: what is stored to the card afterwards comes behind it."""
        if self._flush is not None:
            self._flush.write(self._flush_at, 4, 0)
        else:
            self.mmio.write(self._flush_at, 4, 0)

    def check(self) -> None:
        """Raises DeviceLost where the card does not answer."""
        self.function.check()
        if self.registers.nbif.get("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE") == ALL_ONES:
            raise DeviceLost(f"{self.name}: its registers read as ones: it is gone, or in reset")
