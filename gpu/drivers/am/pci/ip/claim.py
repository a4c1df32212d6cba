"""The first steps: the card answers, its tables are read, and what it was at before is found out.

Nothing in video memory is believed before the boot loader says that its own start is over (bit 31
of C2PMSG_33): a card that was just plugged in is still writing there.

Sources: amdgpu_discovery_read_binary_from_mem, amdgpu_device_mm_access, soc21_need_reset_on_init of
Linux 6.12.117.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import DeviceError, InvalidValue, Unsupported
from gpu.core.log import get_logger
from gpu.drivers.am.firmware import firmware_of
from gpu.drivers.am.pci import discovery as tables
from gpu.drivers.am.pci.chip import DOORBELL_BAR, MMIO_BAR, VRAM_BAR, Chip
from gpu.drivers.am.pci.discovery import HwId, IpBlock, parse_discovery
from gpu.drivers.am.pci.registers import Registers
from gpu.drivers.am.pci.vram import Vram
from gpu.drivers.am.target import Version, dotted

_AMD: Final = 0x1002
# Byte addresses that all chips with such tables have, before the tables tell any.
_MEMSIZE: Final = 0xDE3 * 4
_READY: Final = 0x16061 * 4
_READY_BIT: Final = 1 << 31
_MM_INDEX, _MM_DATA, _MM_INDEX_HI = 0x0, 0x4, 0x18
_IN_VRAM: Final = 1 << 31
_READY_SECONDS: Final = 2.0
_RESET_SECONDS: Final = 1.0  # of the card that takes longest (smu_v14_0_2_ppt.c)
_ALL_ONES: Final = 0xFFFF_FFFF
_KFD: Final = "use it through its kernel driver (DEV=KFD+AMD)"
_APUS: Final = {(11, 0, 1), (11, 0, 4), (11, 5, 0), (11, 5, 1), (11, 5, 2), (11, 5, 3)}
_REASONS: Final = {
    9: "its queues need another packet processor, and one reset takes a whole hive of cards",
    10: "its power management wants a table that only Linux makes",
}
_log = get_logger(__name__)


def claim(chip: Chip) -> None:
    """The function is AMD's, has the BARs of a GPU, and its registers answer.

    They do not while a reset goes on, of which whoever began it may be gone: that is waited for.
    """
    function = chip.function
    if function.ids.vendor != _AMD:
        raise Unsupported(f"{function.address} is of vendor {function.ids.vendor:#06x}, not AMD")
    missing = [bar for bar in (VRAM_BAR, DOORBELL_BAR, MMIO_BAR) if bar not in function.bars]
    if missing:
        raise Unsupported(f"{function.address} has no BAR {missing[0]}: it is no GPU of AMD's")
    function.set_bus_master(True)
    chip.doorbells = chip.see(DOORBELL_BAR, function.bars[DOORBELL_BAR].size)
    if chip.mmio.read(_MEMSIZE, 4) != _ALL_ONES:
        return
    chip.sleep(_RESET_SECONDS)
    function.set_bus_master(True)  # and so the command register, which a reset has emptied
    if chip.mmio.read(_MEMSIZE, 4) == _ALL_ONES:
        raise DeviceError(
            f"{function.address}: its registers read as ones: it is off the bus, asleep or in reset"
        )


def discover(chip: Chip) -> None:
    """Reads the tables, and has registers by name and video memory."""
    chip.wait_at(_READY, "MP0.MP0_SMN_C2PMSG_33", _READY_BIT, _READY_SECONDS)
    size = chip.mmio.read(_MEMSIZE, 4) << 20
    if not tables.FROM_END < size < 1 << 44:
        raise DeviceError(f"{chip.name}: RCC_CONFIG_MEMSIZE says {size:#x} bytes of video memory")
    bar = chip.function.bars[VRAM_BAR].size
    window = chip.see(VRAM_BAR, min(bar, size))
    start = size - tables.FROM_END
    load = window.load
    if start + tables.SIZE > window.size:
        load = partial(_load_beyond, chip)
        _log.warning(
            "%s: the host sees %d of %d MiB of its memory, and no more is used: enable Resizable"
            " BAR",
            *(chip.name, window.size >> 20, size >> 20),
        )
    present = tables.binary_size(load(start, tables.HEADER))
    chip.discovery = parse_discovery(load(start, align_up(present, 4)))
    check_core(chip.discovery.block(HwId.GC))
    chip.registers = Registers(chip.mmio, chip.discovery)
    chip.vram = Vram(size, window)
    chip.firmware = firmware_of(
        chip.function.ids,
        gc=chip.gc,
        sdma=chip.discovery.block(HwId.SDMA0).version,
        mp0=chip.registers.mp0.ip.version,
        mp1=chip.registers.mp1.ip.version,
    )


def _load_beyond(chip: Chip, start: int, size: int) -> bytes:
    """Video memory that no BAR shows, a dword at a time."""
    if start % 4 or size % 4:
        raise InvalidValue(f"{size} bytes at {start:#x}: whole dwords are read")
    words = []
    high = -1
    for at in range(start, start + size, 4):
        chip.mmio.write(_MM_INDEX, 4, at & 0x7FFF_FFFF | _IN_VRAM)
        if at >> 31 != high:
            high = at >> 31
            chip.mmio.write(_MM_INDEX_HI, 4, high)
        words.append(chip.mmio.read(_MM_DATA, 4).to_bytes(4, "little"))
    return b"".join(words)


def check_core(core: IpBlock) -> None:
    """Raises Unsupported, with the reason, for chips that this driver does not boot."""
    version: Version = core.version
    if version in _APUS:
        why = "it is part of a processor, whose firmware the machine's own loads"
    else:
        why = _REASONS.get(version[0], "")
    if why:
        raise Unsupported(f"graphics core {dotted(version)}: {why}; {_KFD}")


def find_state(chip: Chip) -> None:
    """Whether firmware runs on the card, which does not take other firmware then."""
    mp0 = chip.registers.mp0
    chip.state = "alive" if mp0.get(sos_register(chip)) else "cold"


def sos_register(chip: Chip) -> str:
    """The register that is not 0 once the security processor's system runs."""
    return mailbox(chip, 81)


def mailbox(chip: Chip, number: int) -> str:
    """A register of the security processor's mailbox, which has another name since MP0 14."""
    prefix = "MPASP" if chip.registers.mp0.ip.version[0] >= 14 else "MP0"
    return f"{prefix}_SMN_C2PMSG_{number}"
