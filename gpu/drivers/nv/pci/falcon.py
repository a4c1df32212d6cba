"""A Falcon engine, GSP or SEC2: its reset, loading signed code into it, running that.

The order, which the engine holds to: reset, wait until its memories are cleared, choose the core,
let DMA through, load code and data, tell the boot ROM what to verify, start, wait until it halts.

Sources: kernel_falcon_{tu102,ga102}.c, kernel_gsp_falcon_ga102.c, kgspResetHw_{TU102,GH100},
kgspReadUcodeFuseVersion_GA100 of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from gpu.core.bits import align_up
from gpu.core.errors import HwTimeout, Unsupported
from gpu.core.regs import RegMap
from gpu.drivers.nv.pci.chip import NvCard
from gpu.drivers.nv.pci.images import FalconCode
from gpu.drivers.nv.pci.registers import (
    BCR_CTRL,
    CPUCTL_ALIAS,
    DMACTL,
    DMATRFCMD,
    FALCON_CPUCTL,
    FALCON_ENGINE,
    HWCFG2,
    RISCV_CPUCTL,
    Value,
)

_BLOCK: Final = 256
_SIZE_256: Final = 6
_COHERENT_SYSMEM: Final = 1
_RSA3K: Final = 1
_PROPAGATION: Final = 10  # reads until a reset has arrived
_RESET_READY_SECONDS: Final = 150e-6
_HALT_SECONDS: Final = 4.0
_FUSES: Final = 16


class Falcon:
    """One engine."""

    def __init__(self, card: NvCard, block: RegMap, fuses: str):
        """``fuses`` is the array of registers that has the versions of its code."""
        self._card = card
        self.block = block
        self._fuses = fuses

    def get(self, name: str) -> int:
        """The value of a register: one access."""
        return self.block.read(name).value

    def put(self, name: str, value: int) -> None:
        """Writes a register that is one number."""
        self.block.write(Value(VALUE=value), name)

    # Resetting

    def reset(self) -> None:
        """Resets the engine, and chooses its Falcon core."""
        self._reset_engine()
        if HWCFG2.parse(self.get("FALCON_HWCFG2")).RISCV:
            self._choose_falcon()
        self.put("FALCON_RM", self._card.registers.common.read("PMC_BOOT_0").value)

    def reset_to_riscv(self) -> None:
        """Resets the engine, and chooses its RISC-V core, which waits for its boot ROM."""
        self._reset_engine()
        self.block.write(BCR_CTRL(CORE_SELECT=1, VALID=1, BRFETCH=1), "RISCV_BCR_CTRL")

    def _reset_engine(self) -> None:
        with contextlib.suppress(HwTimeout):  # the bit is not always set, and RM goes on without it
            self._card.wait(
                *(self.block, "FALCON_HWCFG2", lambda value: bool(HWCFG2.parse(value).RESET_READY)),
                *("RESET_READY", _RESET_READY_SECONDS),
            )
        for state in (1, 0):
            self.block.modify(FALCON_ENGINE, RESET=state)
            for _ in range(_PROPAGATION):
                self.get("FALCON_ENGINE")
        self._card.wait(
            *(self.block, "FALCON_HWCFG2", lambda value: not HWCFG2.parse(value).MEM_SCRUBBING),
            "MEM_SCRUBBING 0: its memories are cleared",
        )

    def _choose_falcon(self) -> None:
        if not BCR_CTRL.parse(self.get("RISCV_BCR_CTRL")).CORE_SELECT:
            return
        self.block.write(BCR_CTRL(CORE_SELECT=0), "RISCV_BCR_CTRL")
        self._card.wait(
            *(self.block, "RISCV_BCR_CTRL", lambda value: bool(BCR_CTRL.parse(value).VALID)),
            "VALID: the Falcon core is chosen",
        )

    # Running

    def run(self, code: FalconCode, what: str, mailboxes: tuple[int, int] | None) -> int:
        """Loads code that `reset` has made room for, runs it to its end; what mailbox 0 says then.

        Raises Unsupported where no signature fits the card's fuses, BootTimeout.
        """
        address = self._card.place(self._sign(code, what), what, len(code.image) + _BLOCK)
        self.allow_dma()
        self._load(address, *code.code, code.code_address, DMATRFCMD(SIZE=_SIZE_256, IMEM=1, SEC=1))
        self._load(address, *code.data, 0, DMATRFCMD(SIZE=_SIZE_256))
        self.put("BROM_PARAADDR", code.patch - code.data[0])
        self.put("BROM_ENGIDMASK", code.engine_mask)
        self.put("BROM_CURR_UCODE_ID", code.ucode_id)
        self.put("BROM_MOD_SEL", _RSA3K)
        self.put("FALCON_BOOTVEC", code.code_address)
        if mailboxes is not None:
            self.put("FALCON_MAILBOX0", mailboxes[0])
            self.put("FALCON_MAILBOX1", mailboxes[1])
        self.start()
        self.wait_halted()
        return self.get("FALCON_MAILBOX0")

    def _sign(self, code: FalconCode, what: str) -> bytes:
        """The image with the signature for the card's fuses in its place."""
        fuse = self.fuse_version(code.ucode_id)
        if code.versions:
            present = [bit for bit in range(_FUSES) if code.versions >> bit & 1]
            index = present.index(fuse) if fuse in present else -1
        else:
            index = len(code.signatures) - 1 - fuse if len(code.signatures) > 1 else 0
        if not 0 <= index < len(code.signatures):
            raise Unsupported(
                f"{what} has no signature for the card's fuse version {fuse}:"
                f" {len(code.signatures)} are there, versions {code.versions:#x}"
            )
        signature = code.signatures[index]
        return code.image[: code.patch] + signature + code.image[code.patch + len(signature) :]

    def fuse_version(self, ucode_id: int) -> int:
        """Which version of some code the card's fuses demand: the highest bit that is blown."""
        if not 1 <= ucode_id <= _FUSES:
            return 0
        return self._card.registers.common.read(self._fuses, ucode_id - 1).value.bit_length()

    def allow_dma(self) -> None:
        """Physical addresses of the machine's memory, and no context."""
        self.block.modify("FBIF_CTL", ALLOW_PHYS_NO_CTX=1)
        self.block.write(DMACTL(REQUIRE_CTX=0), "FALCON_DMACTL")
        self.block.modify("FBIF_TRANSCFG", TARGET=_COHERENT_SYSMEM, MEM_TYPE=1)

    def _load(self, address: int, offset: int, size: int, virtual: int, command: DMATRFCMD) -> None:
        """Copies a part of the image to the start of a memory of the engine."""
        self._wait_dma(lambda value: not DMATRFCMD.parse(value).FULL, "FULL 0")
        # The engine adds the place in its address space to the base.
        base = (address + offset - virtual) >> 8
        self.put("FALCON_DMATRFBASE", base & 0xFFFF_FFFF)
        self.put("FALCON_DMATRFBASE1", base >> 32 & 0x1FF)
        for at in range(0, align_up(size, _BLOCK), _BLOCK):
            self._wait_dma(lambda value: not DMATRFCMD.parse(value).FULL, "FULL 0")
            self.put("FALCON_DMATRFMOFFS", at)
            self.put("FALCON_DMATRFFBOFFS", virtual + at)
            self.block.write(command, "FALCON_DMATRFCMD")
        self._wait_dma(lambda value: bool(DMATRFCMD.parse(value).IDLE), "IDLE")

    def _wait_dma(self, accepts: Callable[[int], bool], wanted: str) -> None:
        self._card.wait(self.block, "FALCON_DMATRFCMD", accepts, wanted)

    def start(self) -> None:
        """Starts the Falcon core, through its alias where it wants that."""
        if FALCON_CPUCTL.parse(self.get("FALCON_CPUCTL")).ALIAS_EN:
            self.block.write(CPUCTL_ALIAS(STARTCPU=1), "FALCON_CPUCTL_ALIAS")
        else:
            self.block.write(FALCON_CPUCTL(STARTCPU=1), "FALCON_CPUCTL")

    def wait_halted(self) -> None:
        """Waits until the Falcon core has stopped."""
        self._card.wait(
            *(self.block, "FALCON_CPUCTL", lambda value: bool(FALCON_CPUCTL.parse(value).HALTED)),
            *("HALTED", _HALT_SECONDS),
        )

    # The RISC-V core

    def check_active(self) -> None:
        """Raises BootError unless the RISC-V core runs."""
        value = self.get("RISCV_CPUCTL")
        if not RISCV_CPUCTL.parse(value).ACTIVE_STAT:
            raise self._card.fail(self.block, "RISCV_CPUCTL", value, "ACTIVE_STAT: it runs")
