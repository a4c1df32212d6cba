"""Registers of BAR 0 that a boot touches, by NVIDIA's names.

Sources: open-gpu-kernel-modules at tag 570.144, src/common/inc/swref/published/: nv_ref.h,
turing/tu102/{dev_fb,dev_gsp,dev_gc6_island,dev_gc6_island_addendum,dev_bus}.h,
ampere/ga102/{dev_falcon_v4,dev_falcon_v4_addendum,dev_falcon_second_pri,dev_riscv_pri,dev_fbif_v4,
dev_gsp,dev_gc6_island,dev_fuse}.h, ampere/ga100/dev_fb.h, ada/ad102/dev_gc6_island*.h,
hopper/gh100/{dev_fb,dev_fsp_pri,dev_therm}.h, blackwell/gb202/dev_therm.h,
blackwell/gb10b/dev_fbhub.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpu.core.regs import Entry, RegArray, Register, RegMap, field
from gpu.core.window import Window

LOCKED: Final = 0xBADF4100
"""What a register reads as, but for its last byte, while another engine keeps the host away."""
_PRI_ERROR: Final = 0xBADF


def is_locked(value: int) -> bool:
    """Whether a register was read while another engine keeps the host from it."""
    return value & 0xFFFF_FF00 == LOCKED


def is_error(value: int) -> bool:
    """Whether what was read is an error of the bus within the card, and no register's value."""
    return value >> 16 == _PRI_ERROR


class Value(Register):
    """A register that is one number."""

    VALUE = field(31, 0)


class PMC_BOOT_42(Register):
    """Which chip it is."""

    MINOR_REVISION = field(15, 12)
    MAJOR_REVISION = field(19, 16)
    IMPLEMENTATION = field(23, 20)
    ARCHITECTURE = field(29, 24)


class WPR2_ADDR(Register):
    """A bound of the protected memory, in units of 4 KiB; both are 0 where there is none."""

    VAL = field(31, 4)


class I2CS_SCRATCH(Register):
    """FSP_BOOT_COMPLETE: whether the security processor has started."""

    STATUS = field(31, 0, doc="0xff: success")


class GFW_BOOT_MASK(Register):
    """AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK."""

    READ_PROTECTION_LEVEL0 = field(0, doc="1: the host may read the group")


class GFW_BOOT(Register):
    """AON_SECURE_SCRATCH_GROUP_05_0: how far the card's own firmware has come."""

    PROGRESS = field(7, 0, doc="0xff: completed")


class FB_SIZE(Register):
    """AON_SECURE_SCRATCH_GROUP_42: usable video memory in MiB."""

    VALUE = field(31, 0)


class SCRUBBER(Register):
    """BSI_VPR_SECURE_SCRATCH_15: whether memory was scrubbed."""

    SCRUBBER_HANDOFF = field(31, 29, doc="3 and more: done")


class BOOT_STAGE(Register):
    """BSI_SECURE_SCRATCH_14: how far SEC2 has come with GSP."""

    STAGE_3_HANDOFF = field(26)


class VGA_WORKSPACE(Register):
    """PDISP_VGA_WORKSPACE_BASE: memory that a VBIOS draws to."""

    STATUS = field(3, doc="1: valid")
    ADDR = field(31, 8, doc="in units of 64 KiB")


class MMU_LOCK_MASK(Register):
    """PFB_PRI_MMU_LOCK_CFG_PRIV_LEVEL_MASK."""

    READ_PROTECTION_LEVEL0 = field(0, doc="1: the host may read what is locked")


class EMEMC(Register):
    """Where EMEMD leads, in dwords of blocks of 256 bytes."""

    OFFS = field(7, 2)
    BLK = field(15, 8)
    AINCW = field(24, doc="a write goes on to the next dword")
    AINCR = field(25, doc="a read goes on to the next dword")


class HWCFG2(Register):
    """What an engine has, and what it is at."""

    RISCV = field(10)
    MEM_SCRUBBING = field(12, doc="1: its memories are still being cleared")
    RISCV_BR_PRIV_LOCKDOWN = field(13, doc="1: the host may not touch it")
    RESET_READY = field(31)


class FALCON_CPUCTL(Register):
    """The Falcon core; through its alias where ALIAS_EN says so."""

    STARTCPU = field(1)
    HALTED = field(4, access="ro")
    ALIAS_EN = field(6)


class CPUCTL_ALIAS(Register):
    """Starts the core where CPUCTL may not be written."""

    STARTCPU = field(1)


class DMACTL(Register):
    """Whether DMA wants a context."""

    REQUIRE_CTX = field(0)


class DMATRFCMD(Register):
    """Starts a transfer between the machine's memory and the engine's."""

    FULL = field(0, access="ro")
    IDLE = field(1, access="ro")
    SEC = field(3, 2)
    IMEM = field(4)
    WRITE = field(5)
    SIZE = field(10, 8, doc="6: 256 bytes")
    CTXDMA = field(14, 12)
    SET_DMTAG = field(16)


class FALCON_ENGINE(Register):
    """The reset of an engine."""

    RESET = field(0)
    RESET_STATUS = field(10, 8, access="ro", doc="0 asserted, 2 deasserted")


class FBIF_TRANSCFG(Register):
    """Where an engine's DMA leads."""

    TARGET = field(1, 0, doc="1: the machine's coherent memory")
    MEM_TYPE = field(2, doc="1: physical")


class FBIF_CTL(Register):
    """Rights of an engine's DMA."""

    ALLOW_PHYS_NO_CTX = field(7)


class RISCV_CPUCTL(Register):
    """The RISC-V core."""

    STARTCPU = field(0)
    HALTED = field(4, access="ro")
    ACTIVE_STAT = field(7, access="ro")


class BCR_CTRL(Register):
    """Which core of an engine runs."""

    VALID = field(0)
    CORE_SELECT = field(4, doc="0 Falcon, 1 RISC-V")
    BRFETCH = field(8)


class MMU_INVALIDATE(Register):
    """VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE: has TLBs forget."""

    ALL_VA = field(0)
    ALL_PDB = field(1)
    SYS_MEMBAR = field(6)
    TRIGGER = field(31, doc="1 until it is done")


FALCON: Final[Mapping[str, Entry]] = {
    "FALCON_MAILBOX0": (0x040, Value),
    "FALCON_MAILBOX1": (0x044, Value),
    "FALCON_OS": (0x080, Value),
    "FALCON_RM": (0x084, Value),
    "FALCON_HWCFG2": (0x0F4, HWCFG2),
    "FALCON_CPUCTL": (0x100, FALCON_CPUCTL),
    "FALCON_BOOTVEC": (0x104, Value),
    "FALCON_DMACTL": (0x10C, DMACTL),
    "FALCON_DMATRFBASE": (0x110, Value),
    "FALCON_DMATRFMOFFS": (0x114, Value),
    "FALCON_DMATRFCMD": (0x118, DMATRFCMD),
    "FALCON_DMATRFFBOFFS": (0x11C, Value),
    "FALCON_DMATRFBASE1": (0x128, Value),
    "FALCON_CPUCTL_ALIAS": (0x130, CPUCTL_ALIAS),
    "FALCON_ENGINE": (0x3C0, FALCON_ENGINE),
    "FBIF_TRANSCFG": (0x600, FBIF_TRANSCFG),
    "FBIF_CTL": (0x624, FBIF_CTL),
    "QUEUE_HEAD": (0xC00, Value),
    "BROM_MOD_SEL": (0x1180, Value),
    "BROM_CURR_UCODE_ID": (0x1198, Value),
    "BROM_ENGIDMASK": (0x119C, Value),
    "BROM_PARAADDR": (0x1210, Value),
    "RISCV_CPUCTL": (0x1388, RISCV_CPUCTL),
    "RISCV_BCR_CTRL": (0x1668, BCR_CTRL),
}
"""Of an engine with a Falcon and a RISC-V core, GSP or SEC2, from its base."""
GSP_BASE, SEC2_BASE = 0x110000, 0x840000

FSP: Final[Mapping[str, Entry]] = {
    "SCRATCH_GROUP_2": RegArray(0x8F0320, Value, 4, 4),
    "SCRATCH_GROUP_3": RegArray(0x8F0330, Value, 4, 4),
    "EMEMC": (0x8F2AC0, EMEMC),
    "EMEMD": (0x8F2AC4, Value),
    "QUEUE_HEAD": (0x8F2C00, Value),
    "QUEUE_TAIL": (0x8F2C04, Value),
    "MSGQ_HEAD": (0x8F2C80, Value),
    "MSGQ_TAIL": (0x8F2C84, Value),
}
"""The security processor of Hopper and Blackwell; of each queue the one that is RM's, 0."""

COMMON: Final[Mapping[str, Entry]] = {
    "PMC_BOOT_0": (0x0, Value),
    "PMC_BOOT_42": (0xA00, PMC_BOOT_42),
    "VBIOS_SCRATCH": RegArray(0x1400, Value, 0x40, 4),
    "GFW_BOOT_MASK": (0x118128, GFW_BOOT_MASK),
    "GFW_BOOT": (0x118234, GFW_BOOT),
    "FB_SIZE": (0x1183A4, FB_SIZE),
    "BOOT_STAGE": (0x1180F8, BOOT_STAGE),
    "SCRUBBER": (0x1180FC, SCRUBBER),
    "MMU_LOCK_MASK": (0x1FA7C8, MMU_LOCK_MASK),
    "MMU_LOCK_ADDR_LO": (0x1FA82C, WPR2_ADDR),
    "MMU_LOCK_ADDR_HI": (0x1FA830, WPR2_ADDR),
    "VGA_WORKSPACE": (0x625F04, VGA_WORKSPACE),
    "FUSE_DISPLAY": (0x820C04, Value),
    "WPR2_ADDR_LO": (0x1FA824, WPR2_ADDR),
    "WPR2_ADDR_HI": (0x1FA828, WPR2_ADDR),
    "MMU_INVALIDATE": (0xB830B0, MMU_INVALIDATE),
    "FUSE_GSP_UCODE_VERSION": RegArray(0x8241C0, Value, 16, 4),
    "FUSE_SEC2_UCODE_VERSION": RegArray(0x824140, Value, 16, 4),
    "FSP_BOOT_GH100": (0x200BC, I2CS_SCRATCH),
    "FSP_BOOT_GB20X": (0xAD00BC, I2CS_SCRATCH),
    # Where the card flushes what it wrote to the machine's memory.
    "FLUSH_GA10X_LO": (0x100C10, Value),
    "FLUSH_GA10X_HI": (0x100C40, Value),
    "FLUSH_GH100_LO": (0x100A34, Value),
    "FLUSH_GH100_HI": (0x100A38, Value),
    "FLUSH_GB20X_LO": (0x8A1D58, Value),
    "FLUSH_GB20X_HI": (0x8A1D5C, Value),
}
"""All others."""
PROM: Final = 0x300000
"""Where the card's ROM is."""


class Registers:
    """The registers of a card, in blocks.

    Attributes:
        common: those of no engine.
        gsp: of the engine on which RM runs.
        sec2: of the engine that loads it on Ampere and Ada.
        fsp: of the security processor.
    """

    def __init__(self, window: Window):
        """``window`` is that of BAR 0."""
        self.common = RegMap(window, COMMON)
        self.gsp = RegMap(window, FALCON, GSP_BASE)
        self.sec2 = RegMap(window, FALCON, SEC2_BASE)
        self.fsp = RegMap(window, FSP)

    def blocks(self) -> Iterator[tuple[str, RegMap]]:
        """All of them with their names."""
        yield from (("", self.common), ("GSP.", self.gsp), ("SEC2.", self.sec2), ("FSP.", self.fsp))

    def name_of(self, offset: int) -> str | None:
        """The register at an address of BAR 0, None for none that is known."""
        for prefix, block in self.blocks():
            if (name := block.name_of(offset)) is not None:
                return prefix + name
        return None
