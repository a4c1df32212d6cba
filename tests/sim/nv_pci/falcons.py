"""A small driver of Ampere's and Ada's falcons for tests of their model, from NVIDIA's headers.

It boots GSP in the order of kgspBootstrap_TU102 and leaves as kgspTeardown_TU102 does. A test
changes what it tells a falcon: `Job`'s fields, `meta`, `command` and so on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from gpu.sim.nv.pci.boards import find_board
from gpu.sim.nv.pci.images import learn
from gpu.sim.nv.pci.signed import SIGNATURE_BYTES, Engine, Signed
from gpu.sim.nv.pci.vbios import make_rom
from sim.nv_pci.client import CPUCTL, MAILBOX, MIB, OS, PAGE, Client

BASE: Final = {Engine.GSP: 0x110000, Engine.SEC2: 0x840000}
FUSES: Final = {Engine.GSP: 0x8241C0, Engine.SEC2: 0x824140}
HWCFG2, FALCON_CPUCTL, BOOTVEC, DMACTL, ALIAS, RM, ENGINE = (
    0xF4,
    0x100,
    0x104,
    0x10C,
    0x130,
    0x84,
    0x3C0,
)
DMABASE, MOFFS, DMACMD, FBOFFS, DMABASE1 = 0x110, 0x114, 0x118, 0x11C, 0x128
TRANSCFG, FBIF_CTL, BCR, RISCV_CPUCTL = 0x600, 0x624, 0x1668, 0x1388
MOD_SEL, UCODE_ID, ENGIDMASK, PARAADDR = 0x1180, 0x1198, 0x119C, 0x1210
FRTS, SB = 0x15, 0x19
GFW_MASK, GFW, HANDOFF = 0x118128, 0x118234, 0x1180FC
FRTS_SCRATCH, SB_SCRATCH = 0x1400 + 4 * 0x0E, 0x1400 + 4 * 0x15
NISO_LOW, NISO_HIGH = 0x100C10, 0x100C40
VGA = 0x625F04
IMEM, DMEM, START, HALTED, ALIAS_EN = 0x614, 0x600, 2, 1 << 4, 1 << 6


@dataclass
class Job:
    """What a falcon is to run.

    Attributes: those of `Signed`, as a driver tells them, and
        code_command, data_command: what starts a transfer into the two memories.
        vector: where it starts; None for not written.
        skip: registers that are not written.
    """

    image: Signed
    data: bytearray
    algorithm: int = 1
    ucode_id: int = 0
    engine_mask: int = 0
    signature_at: int = 0
    vector: int = 0
    code_command: int = IMEM
    data_command: int = DMEM
    skip: set[int] = field(default_factory=set)


class FalconClient(Client):
    """A function in the hands of a process.

    Attributes: those of `Client`, and
        rom: what is in the card's.
        images: signed code by name.
        command: what FWSEC finds behind its commands; made by `frts_command`.
        frts_at: where FRTS is wanted.
    """

    mirror = 0x88000

    def __init__(self, chip: str = "ga102", **options: object):
        super().__init__(chip, **options)
        board = find_board(chip)
        self.rom = make_rom(board)
        signed = learn(board, self.world.firmware).signed
        self.images = {image.name: image for image in (self.rom.fwsec, *signed)}

    def prepare_way(self, name: str) -> None:
        """Places in video memory, from its end on (kgspCalculateFbLayout_TU102)."""
        meta, size = self.meta, self.read(0x1183A4) << 20
        vga = self.read(VGA) >> 8 << 16
        meta.fbSize, meta.vgaWorkspaceOffset, meta.vgaWorkspaceSize = size, vga, size - vga
        meta.gspFwWprEnd = vga & -0x20000
        meta.frtsOffset = self.frts_at = meta.gspFwWprEnd - MIB
        meta.bootBinOffset = meta.frtsOffset - meta.sizeOfBootloader & -PAGE
        meta.gspFwOffset = meta.bootBinOffset - meta.sizeOfRadix3Elf & -0x10000
        meta.gspFwHeapOffset = meta.gspFwOffset - meta.gspFwHeapSize & -MIB
        meta.gspFwHeapSize = meta.gspFwOffset - meta.gspFwHeapOffset & -MIB
        meta.gspFwWprStart = meta.gspFwHeapOffset - MIB
        meta.nonWprHeapOffset = meta.gspFwRsvdStart = meta.gspFwWprStart - meta.nonWprHeapSize
        self.write(NISO_HIGH, self.flush >> 40)
        self.write(NISO_LOW, self.flush >> 8 & 0xFFFFFFFF)
        self.read_command = (1, 24, 0, 0, 2)
        self.region = [1, 20, self.frts_at >> 12, MIB >> 12, 2]

    def peek_at(self, engine: Engine, offset: int) -> int:
        return self.read(BASE[engine] + offset)

    def put_at(self, engine: Engine, offset: int, value: int) -> None:
        self.write(BASE[engine] + offset, value)

    def reset(self, engine: Engine) -> None:
        """kflcnReset_TU102."""
        self.put_at(engine, ENGINE, 1)
        self.put_at(engine, ENGINE, 0)
        for _ in range(1000):
            if not self.peek_at(engine, HWCFG2) & 1 << 12:
                break
        self.put_at(engine, RM, self.read(0))

    def select_riscv(self) -> None:
        self.put_at(Engine.GSP, BCR, 0x111)
        for _ in range(100):
            if self.peek_at(Engine.GSP, BCR) & 1:
                return

    def version(self, image: Signed) -> int:
        return self.read(FUSES[image.engine] + 4 * (image.ucode_id - 1)).bit_length()

    def job(self, name: str) -> Job:
        """What is in order, with the signature that the fuses want."""
        image = self.images[name]
        data = bytearray(image.data)
        at = image.signature_at
        data[at : at + SIGNATURE_BYTES] = image.signatures[self.version(image)]
        mask, entry = image.engine.value, image.entry
        return Job(image, data, 1, image.ucode_id, mask, at, entry)

    def fwsec(self, command: int) -> Job:
        """FWSEC with what it is to do."""
        job = self.job("FWSEC")
        struct.pack_into("<I", job.data, self.rom.command_at, command)
        version, size, offset, length, flags = self.read_command
        body = struct.pack("<IIQII5I", version, size, offset, length, flags, *self.region)
        at = self.rom.buffer_at
        job.data[at : at + len(body)] = body
        return job

    def allow_dma(self, engine: Engine) -> None:
        """kflcnDisableCtxReq_TU102, and the aperture."""
        self.put_at(engine, FBIF_CTL, 0x80)
        self.put_at(engine, DMACTL, 0)
        self.put_at(engine, TRANSCFG, 5)

    def transfer(
        self, engine: Engine, source: int, to: int, offset: int, size: int, command: int
    ) -> None:
        """s_dmaTransfer_GA102."""
        base = source - offset >> 8
        self.put_at(engine, DMABASE, base & 0xFFFFFFFF)
        self.put_at(engine, DMABASE1, base >> 32 & 0x1FF)
        for at in range(0, size, 256):
            self.wait(engine, lambda value: not value & 1)
            self.put_at(engine, MOFFS, to + at)
            self.put_at(engine, FBOFFS, offset + at)
            self.put_at(engine, DMACMD, command)
        self.wait(engine, lambda value: bool(value & 2))

    def wait(self, engine: Engine, test) -> None:  # type: ignore[no-untyped-def]
        for _ in range(1000):
            if test(self.peek_at(engine, DMACMD)):
                return
        raise AssertionError("DMA does not go on")

    def load_job(self, job: Job) -> None:
        """Both memories, and the boot ROM's registers."""
        engine, image = job.image.engine, job.image
        whole = image.code + bytes(-len(image.code) % 256) + bytes(job.data)
        source = self.hold(whole + bytes(-len(whole) % 256))
        at = len(whole) - len(job.data)
        self.transfer(engine, source, 0, image.entry, len(image.code), job.code_command)
        self.transfer(engine, source + at, 0, 0, len(job.data), job.data_command)
        registers = {
            PARAADDR: job.signature_at,
            ENGIDMASK: job.engine_mask,
            UCODE_ID: job.ucode_id,
            MOD_SEL: job.algorithm,
            BOOTVEC: job.vector,
        }
        for offset, value in registers.items():
            if offset not in job.skip:
                self.put_at(engine, offset, value)

    def set_mailbox(self, engine: Engine, value: int) -> None:
        self.put_at(engine, 0x40, value & 0xFFFFFFFF)
        self.put_at(engine, 0x44, value >> 32)

    def start_cpu(self, engine: Engine) -> None:
        """kflcnStartCpu_TU102."""
        alias = self.peek_at(engine, FALCON_CPUCTL) & ALIAS_EN
        self.put_at(engine, ALIAS if alias else FALCON_CPUCTL, START)

    def execute(self, job: Job, mailbox: int | None = None) -> int:
        """kgspExecuteHsFalcon_GA102 on a falcon that was reset; what its mailbox says then."""
        engine = job.image.engine
        self.allow_dma(engine)
        self.load_job(job)
        if mailbox is not None:
            self.set_mailbox(engine, mailbox)
        self.start_cpu(engine)
        for _ in range(100):
            if self.peek_at(engine, FALCON_CPUCTL) & HALTED:
                break
            self.pass_ms(1)
        return self.peek_at(engine, 0x40)

    def make_frts(self) -> None:
        self.reset(Engine.GSP)
        self.execute(self.fwsec(FRTS))

    def reset_to_riscv(self) -> None:
        """GSP waits on its other core, with libos' arguments."""
        self.reset(Engine.GSP)
        self.select_riscv()
        self.set_mailbox(Engine.GSP, self.hold(self.place_regions()))

    def scrub(self) -> None:
        if self.chip == "ad102" and self.read(HANDOFF) >> 29 < 3:
            self.reset(Engine.SEC2)
            self.execute(self.job("scrubber"))

    def load_rm(self) -> int:
        """booter_load, with what it is told of memory; what it says."""
        self.reset(Engine.SEC2)
        return self.execute(self.job("booter_load"), self.hold(bytes(self.meta)))

    def start(self) -> int:
        """All up to a running core; what booter says."""
        self.make_frts()
        self.reset_to_riscv()
        self.scrub()
        code = self.load_rm()
        if not code:
            self.write(OS, self.app_version)
            assert self.read(CPUCTL) & 1 << 7
        return code

    def leave(self) -> None:
        """kgspTeardown_TU102, once RM was told."""
        assert self.call(47, bytes(8)) is not None
        self.pass_ms(10)
        assert self.read(MAILBOX) == 0x80000000
        self.reset(Engine.GSP)
        self.execute(self.fwsec(SB))
        self.reset(Engine.SEC2)
        assert self.execute(self.job("booter_unload"), 0xFF << 32 | 0xFF) == 0
