"""How GSP comes up on Ampere and Ada: code of the VBIOS makes FRTS, booter on SEC2 the rest.

    FWSEC (FRTS) on GSP -> GSP reset to RISC-V, mailboxes -> scrubber, if needed -> booter_load
    leaving: GSP reset, FWSEC (SB) -> booter_unload

Sources: kgspBootstrap_TU102, kgspTeardown_TU102, kernel_gsp_{booter,frts}_tu102.c,
kernel_gsp_ad102.c, kgspExecuteSequencerCommand_GA102, memmgrReadMmuLock_GA100,
kern_disp_0400.c of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.errors import Unsupported
from gpu.drivers.nv.pci.chip import NvCard
from gpu.drivers.nv.pci.falcon import Falcon
from gpu.drivers.nv.pci.images import FalconCode, parse_falcon
from gpu.drivers.nv.pci.layout import Reserved
from gpu.drivers.nv.pci.registers import (
    BOOT_STAGE,
    GFW_BOOT,
    GFW_BOOT_MASK,
    MMU_LOCK_MASK,
    PROM,
    SCRUBBER,
    VGA_WORKSPACE,
    WPR2_ADDR,
)
from gpu.drivers.nv.pci.vbios import FRTS, SB, Fwsec, find_fwsec, read_vbios, with_command

_SUSPENDED: Final = 0x8000_0000
_SCRUBBED: Final = 3
_DONE: Final = 0xFF
_NO_RESUME: Final = (0xFF, 0xFF)  # kgspExecuteBooterUnloadIfNeeded_TU102; 0 is its success
_FRTS_SCRATCH, _SB_SCRATCH = 0x0E, 0x15


class Cores:
    """The cores of GSP, as programs of its own ask for them (`gpu.drivers.nv.pci.sequencer`)."""

    def __init__(self, card: NvCard):
        """Nothing is touched."""
        self._card = card
        self.gsp = Falcon(card, card.registers.gsp, "FUSE_GSP_UCODE_VERSION")
        self.sec2 = Falcon(card, card.registers.sec2, "FUSE_SEC2_UCODE_VERSION")
        self.libos_at = 0
        self.app_version = 0

    def reset(self) -> None:
        """As a Falcon, with DMA let through."""
        self.gsp.reset()
        self.gsp.allow_dma()

    def start(self) -> None:
        """Its Falcon core."""
        self.gsp.start()

    def wait_halted(self) -> None:
        """Until that core has stopped."""
        self.gsp.wait_halted()

    def resume(self) -> None:
        """RM goes on on the RISC-V core, which SEC2 starts. Raises BootError, BootTimeout."""
        self.reset_to_riscv()
        self.sec2.start()
        common = self._card.registers.common
        self._card.wait(
            *(common, "BOOT_STAGE", lambda value: bool(BOOT_STAGE.parse(value).STAGE_3_HANDOFF)),
            "STAGE_3_HANDOFF: SEC2 has started it",
        )
        if code := self.sec2.get("FALCON_MAILBOX0"):
            raise self._card.fail(self.sec2.block, "FALCON_MAILBOX0", code, "0: it is started")
        self.run_rm()

    def reset_to_riscv(self) -> None:
        """GSP waits on its RISC-V core, with libos' arguments in its mailboxes."""
        self.gsp.reset_to_riscv()
        self.gsp.put("FALCON_MAILBOX0", self.libos_at & 0xFFFF_FFFF)
        self.gsp.put("FALCON_MAILBOX1", self.libos_at >> 32)

    def run_rm(self) -> None:
        """Tells which version runs. Raises BootError unless the RISC-V core does."""
        self.gsp.put("FALCON_OS", self.app_version)
        self.gsp.check_active()


class FalconWay:
    """The codes that bring GSP up, and what they must leave behind."""

    def __init__(self, card: NvCard, cores: Cores, files: Mapping[str, bytes]):
        """``files`` are those of booter, and of a scrubber. Raises FormatError."""
        self._card = card
        self._cores = cores
        self._codes: dict[str, FalconCode] = {
            part: parse_falcon(files[part], part)
            for part in card.chip.parts
            if part.startswith(("booter", "scrubber"))
        }
        mmio = card.mmio
        self._fwsec: Fwsec = find_fwsec(read_vbios(lambda at: mmio.read(PROM + at, 4)))

    def reserved(self) -> Reserved:
        """What of the end of video memory is not ours. Raises Unsupported if it is hidden."""
        common = self._card.registers.common
        vga = common.read(VGA_WORKSPACE)
        has_display = not common.read("FUSE_DISPLAY").value & 1
        if not MMU_LOCK_MASK.parse(common.read("MMU_LOCK_MASK").value).READ_PROTECTION_LEVEL0:
            raise Unsupported(f"{self._card.name}: it hides which memory its VBIOS has locked")
        low, high = (
            WPR2_ADDR.parse(common.read(f"MMU_LOCK_ADDR_{end}").value).VAL << 12
            for end in ("LO", "HI")
        )
        return Reserved(
            vga=vga.ADDR << 16 if has_display and vga.STATUS else None,
            locked=low if high >= low else None,
        )

    def make_frts(self, meta: gsp.GspFwWprMeta) -> None:
        """FWSEC makes FRTS, and with it WPR2. Raises BootError unless it is where it is wanted."""
        card, common = self._card, self._card.registers.common
        self._cores.gsp.reset()
        code = with_command(self._fwsec, FRTS, meta.frtsOffset)
        self._cores.gsp.run(code, "FWSEC", None)
        self._check_scratch(_FRTS_SCRATCH, 16, "FWSEC refused to make FRTS")
        high, low = (common.read(f"WPR2_ADDR_{end}").value for end in ("HI", "LO"))
        if not WPR2_ADDR.parse(high).VAL:
            raise card.fail(common, "WPR2_ADDR_HI", high, "another value than 0: FRTS was made")
        if meta.frtsOffset >> 12 != WPR2_ADDR.parse(low).VAL:
            raise card.fail(common, "WPR2_ADDR_LO", low, f"FRTS at {meta.frtsOffset:#x}")

    def _check_scratch(self, index: int, shift: int, more: str) -> None:
        """Raises BootError where FWSEC left an error code."""
        common = self._card.registers.common
        value = common.read("VBIOS_SCRATCH", index).value
        if value >> shift & 0xFFFF:
            title = f"VBIOS_SCRATCH[{index}]"
            raise self._card.fail_at(title, value, f"0 in bits {shift + 15}:{shift}", more)

    def start(self, meta_at: int) -> None:
        """Booter loads RM, and starts it. Raises BootError with the code of what failed."""
        self._cores.reset_to_riscv()
        if "scrubber" in self._codes and not self._is_scrubbed():
            self._run_sec2("scrubber", None)
            if not self._is_scrubbed():
                common = self._card.registers.common
                value = common.read(SCRUBBER).value
                raise self._card.fail(common, "SCRUBBER", value, "SCRUBBER_HANDOFF 3")
        self._run_sec2("booter_load", (meta_at & 0xFFFF_FFFF, meta_at >> 32))

    def _is_scrubbed(self) -> bool:
        return self._card.registers.common.read(SCRUBBER).SCRUBBER_HANDOFF >= _SCRUBBED

    def _run_sec2(self, part: str, mailboxes: tuple[int, int] | None) -> None:
        """Runs code on SEC2. Raises BootError with its code where it says that it failed."""
        sec2 = self._cores.sec2
        sec2.reset()
        code = sec2.run(self._codes[part], part, mailboxes)
        if mailboxes is not None and code:
            raise self._card.fail(sec2.block, "FALCON_MAILBOX0", code, "0", f"{part} failed")

    def leave(self) -> None:
        """Once RM has ended the card goes back to its own firmware, and WPR2 down."""
        card, common = self._card, self._card.registers.common
        card.wait(
            *(self._cores.gsp.block, "FALCON_MAILBOX0", lambda value: value == _SUSPENDED),
            f"{_SUSPENDED:#x}: RM has ended",
        )
        self._cores.gsp.reset()
        self._cores.gsp.run(with_command(self._fwsec, SB), "FWSEC", None)
        mask = common.read("GFW_BOOT_MASK").value
        if not GFW_BOOT_MASK.parse(mask).READ_PROTECTION_LEVEL0:
            raise card.fail(common, "GFW_BOOT_MASK", mask, "READ_PROTECTION_LEVEL0")
        progress = common.read("GFW_BOOT").value
        if GFW_BOOT.parse(progress).PROGRESS != _DONE:
            raise card.fail(common, "GFW_BOOT", progress, "PROGRESS 0xff")
        self._check_scratch(_SB_SCRATCH, 0, "FWSEC did not give the card back")
        self._run_sec2("booter_unload", _NO_RESUME)
