"""The security processor: it alone starts firmware, after it has checked its signature.

Its boot loader takes components one after the other from a buffer in video memory, the last of
which is its system; that has a ring of commands, by which it takes firmware of all other parts.

Sources: psp_v13_0.c, psp_v14_0.c, amdgpu_psp.c, psp_gfx_if.h of Linux 6.12.117. Which parts a
compute driver needs is what tinygrad loads (T): on GFX11 no PFP and ME, on neither a scheduler
(MES).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.autogen.amd import amdgpu_ucode as ucode_layout
from gpu.autogen.amd import psp_gfx_if as layout
from gpu.core.bits import align_up
from gpu.core.errors import FirmwareError
from gpu.drivers.am.pci import ucode
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.ip.claim import mailbox
from gpu.drivers.am.pci.ip.msg1 import Buffer, firmware_buffer
from gpu.drivers.am.pci.ucode import Part, SecureImage
from gpu.drivers.am.target import Version
from gpu.drivers.boot import BootError

_MIB: Final = 1 << 20
_RING: Final = 0x1000
_FRAME_DWORDS: Final = 16
_READY: Final = 1 << 31
_RING_BITS: Final = 0x8000_FFFF
_KERNEL_RING: Final = 2 << 16
_HANDSHAKE: Final = 0.02  # s that Linux waits after commands of the mailbox
_MOST_TMR: Final = 32 << 20
_LEFT_SO: Final = (
    "a boot loader that was left in the midst of a start does not begin anew: close the card with"
    " all of its functions handed over (`gpu pci take`), which resets it, or switch the machine off"
)

# (component of the file, command of the boot loader), in the order they are given
_COMPONENTS: Final = (
    (ucode_layout.PSP_FW_TYPE_PSP_KDB, 0x80000),
    (ucode_layout.PSP_FW_TYPE_PSP_SPL, 0x1000_0000),
    (ucode_layout.PSP_FW_TYPE_PSP_SYS_DRV, 0x10000),
    (ucode_layout.PSP_FW_TYPE_PSP_SOC_DRV, 0xB0000),
    (ucode_layout.PSP_FW_TYPE_PSP_INTF_DRV, 0xD0000),
    (ucode_layout.PSP_FW_TYPE_PSP_DBG_DRV, 0xC0000),
    (ucode_layout.PSP_FW_TYPE_PSP_RAS_DRV, 0xE0000),
    (ucode_layout.PSP_FW_TYPE_PSP_IPKEYMGR_DRV, 0xF0000),
)
_LOAD_SYSTEM: Final = 0x20000
_STACKS: Final = {  # core -> (code, data of each pipe)
    "pfp": (
        layout.GFX_FW_TYPE_RS64_PFP,
        (layout.GFX_FW_TYPE_RS64_PFP_P0_STACK, layout.GFX_FW_TYPE_RS64_PFP_P1_STACK),
    ),
    "me": (
        layout.GFX_FW_TYPE_RS64_ME,
        (layout.GFX_FW_TYPE_RS64_ME_P0_STACK, layout.GFX_FW_TYPE_RS64_ME_P1_STACK),
    ),
    "mec": (
        layout.GFX_FW_TYPE_RS64_MEC,
        (
            *(layout.GFX_FW_TYPE_RS64_MEC_P0_STACK, layout.GFX_FW_TYPE_RS64_MEC_P1_STACK),
            *(layout.GFX_FW_TYPE_RS64_MEC_P2_STACK, layout.GFX_FW_TYPE_RS64_MEC_P3_STACK),
        ),
    ),
}
# GFX12 has one of PFP and ME, and two of MEC (gfx_v12_0_init_microcode).
_PIPES_12: Final = {"pfp": 1, "me": 1, "mec": 2}


class Psp:
    """The security processor of a card that is being booted."""

    def __init__(self, chip: Chip, buffer: Buffer):
        """``buffer`` is what the boot loader and later commands read firmware from."""
        self.chip = chip
        self._block = chip.registers.mp0
        self._buffer = buffer
        self._ring = chip.place("PSP ring", _RING)
        self._command = chip.place("PSP command", 0x1000)
        self._fence = chip.place("PSP fence", 0x1000)
        self._count = 0

    def _get(self, number: int) -> int:
        return self._block.get(mailbox(self.chip, number))

    def _set(self, number: int, value: int) -> None:
        self._block.set(mailbox(self.chip, number), value)

    # The boot loader

    def load_system(self, image: SecureImage) -> None:
        """Components, and the system, which runs afterwards. Raises BootTimeout, BootError."""
        if ucode_layout.PSP_FW_TYPE_PSP_SOS not in image.parts:
            raise FirmwareError(f"{self.chip.firmware.secure.name} has no system (sOS)")
        for data, command in _components(self._block.ip.version, image):
            self._give(data, command)
            self._await_loader()
        self._give(image.parts[ucode_layout.PSP_FW_TYPE_PSP_SOS], _LOAD_SYSTEM)
        self.chip.sleep(_HANDSHAKE)
        self.chip.wait_other(self._block, mailbox(self.chip, 81), 0)

    def _await_loader(self) -> None:
        """The boot loader waits for a command; below MP0 14 all its other bits are 0 then."""
        exact = self._block.ip.version[0] < 14
        bits = 0xFFFF_FFFF if exact else _READY
        self.chip.wait(self._block, mailbox(self.chip, 35), bits, _READY)

    def _give(self, data: bytes, command: int) -> None:
        self._await_loader()
        self._set(36, self._buffer.put(data) >> 20)
        self._set(35, command)

    # The ring

    def open_ring(self) -> None:
        """A ring for commands, instead of one that may be there."""
        name = mailbox(self.chip, 64)
        if self._get(71):
            self._set(64, layout.GFX_CTRL_CMD_ID_DESTROY_RINGS)
            self.chip.sleep(_HANDSHAKE)
            self.chip.wait(self._block, name, _READY, _READY)
        self.chip.wait(self._block, name, _READY, _READY)
        for place in (self._ring, self._fence, self._command):
            self.chip.vram.clear(place, 0x1000)
        self.chip.flush_hdp()
        ring = self.chip.mc(self._ring)
        self._set(69, ring & 0xFFFF_FFFF)
        self._set(70, ring >> 32)
        self._set(71, _RING)
        self._set(64, _KERNEL_RING)
        self.chip.sleep(_HANDSHAKE)
        self.chip.wait(self._block, name, _RING_BITS, _READY)

    def submit(self, command: layout.psp_gfx_cmd_resp, what: str) -> layout.psp_gfx_cmd_resp:
        """Has a command done; the answer. Raises FirmwareError for a status that is not 0."""
        chip, window = self.chip, self.chip.vram.window
        self._count += 1
        window.store(self._command, bytes(command))
        written = self._get(67)
        if written % _FRAME_DWORDS or written >= _RING // 4:
            raise chip.fail(self._block, mailbox(chip, 67), "a multiple of 16 within the ring")
        frame = layout.psp_gfx_rb_frame(
            cmd_buf_addr_lo=chip.mc(self._command) & 0xFFFF_FFFF,
            cmd_buf_addr_hi=chip.mc(self._command) >> 32,
            fence_addr_lo=chip.mc(self._fence) & 0xFFFF_FFFF,
            fence_addr_hi=chip.mc(self._fence) >> 32,
            fence_value=self._count,
        )
        window.store(self._ring + 4 * written, bytes(frame))
        chip.flush_hdp()
        self._set(67, (written + _FRAME_DWORDS) % (_RING // 4))
        chip.wait_memory(self._fence, self._count, f"the fence of {what}")
        size = len(bytes(command))
        answer = layout.psp_gfx_cmd_resp.from_buffer_copy(window.load(self._command, size))
        if answer.resp.status:
            raise FirmwareError(
                f"{chip.name}: {what} was refused by the security processor: status"
                f" {answer.resp.status:#x}, wanted 0"
            )
        return answer

    def load_contents(self, contents: bytes) -> int:
        """Gives the table of contents; how much memory firmware will take, in bytes."""
        command = layout.psp_gfx_cmd_resp(cmd_id=layout.GFX_CMD_ID_LOAD_TOC)
        place = self._buffer.put(contents)
        command.cmd.cmd_load_toc.toc_phy_addr_lo = place & 0xFFFF_FFFF
        command.cmd.cmd_load_toc.toc_phy_addr_hi = place >> 32
        command.cmd.cmd_load_toc.toc_size = len(contents)
        return int(self.submit(command, "LOAD_TOC").resp.tmr_size)

    def give_memory(self, size: int) -> None:
        """Memory of firmware's own (TMR), which nobody else touches from then on."""
        if not 0 < size <= _MOST_TMR:
            raise FirmwareError(f"{self.chip.name}: the table of contents asks for {size:#x} bytes")
        # "Naturally aligned", as amdgpu_psp.c says that hardware prefers.
        align = max(_MIB, 1 << (size - 1).bit_length())
        place = self.chip.place("TMR", align_up(size, _MIB), align)
        command = layout.psp_gfx_cmd_resp(cmd_id=layout.GFX_CMD_ID_SETUP_TMR)
        tmr, mc, pa = command.cmd.cmd_setup_tmr, self.chip.mc(place), self.chip.pa_base + place
        tmr.buf_phy_addr_lo, tmr.buf_phy_addr_hi = mc & 0xFFFF_FFFF, mc >> 32
        tmr.buf_size = align_up(size, _MIB)
        tmr.bitfield.virt_phy_addr = 1
        tmr.system_phy_addr_lo, tmr.system_phy_addr_hi = pa & 0xFFFF_FFFF, pa >> 32
        self.submit(command, "SETUP_TMR")

    def load_part(self, part: Part) -> None:
        """Firmware of another part of the chip."""
        command = layout.psp_gfx_cmd_resp(cmd_id=layout.GFX_CMD_ID_LOAD_IP_FW)
        load, place = command.cmd.cmd_load_ip_fw, self._buffer.put(part.data)
        load.fw_phy_addr_lo, load.fw_phy_addr_hi = place & 0xFFFF_FFFF, place >> 32
        load.fw_size, load.fw_type = len(part.data), part.type
        self.submit(command, f"LOAD_IP_FW of type {part.type}")

    def start_loading(self) -> None:
        """All firmware of the graphics core is there: its controller starts it."""
        command = layout.psp_gfx_cmd_resp(cmd_id=layout.GFX_CMD_ID_AUTOLOAD_RLC)
        self.submit(command, "AUTOLOAD_RLC")


def start_security(chip: Chip) -> None:
    """From a boot loader that waits to firmware in all parts of the chip."""
    with firmware_buffer(chip) as buffer:
        _give_all(chip, Psp(chip, buffer))


def _give_all(chip: Chip, psp: Psp) -> None:
    files, read = chip.firmware, chip.load
    image = ucode.parse_secure(files.secure.name, read(files.secure))
    contents = image.parts.get(ucode_layout.PSP_FW_TYPE_PSP_TOC)
    if contents is None:
        raise FirmwareError(f"{files.secure.name} has no table of contents")
    smu = ucode.parse_smu(files.smu.name, read(files.smu))
    parts = list(_parts(chip))
    try:
        psp.load_system(image)
    except BootError as error:
        error.add(_LEFT_SO)
        raise
    psp.open_ring()
    size = psp.load_contents(contents)
    version = chip.registers.mp0.ip.version
    # Where power management has the last word on the memory's states it is there before the TMR.
    smu_first = version in ((13, 0, 0), (13, 0, 7))
    if smu_first:
        psp.load_part(smu)
    if version[0] < 14:  # from 14 on the card's own start has done it
        psp.give_memory(size)
    if not smu_first:
        psp.load_part(smu)
    for part in parts:
        psp.load_part(part)
    psp.start_loading()


def _components(version: Version, image: SecureImage) -> Iterator[tuple[bytes, int]]:
    """What the boot loader of a version is given before the system, with the commands.

    Where a file below 14 has a table of versions (SPL), Linux gives the keys once more instead.
    """
    for kind, command in _COMPONENTS:
        if kind not in image.parts:
            continue
        if kind == ucode_layout.PSP_FW_TYPE_PSP_SPL and version[0] < 14:
            yield image.parts[ucode_layout.PSP_FW_TYPE_PSP_KDB], command
        elif kind != ucode_layout.PSP_FW_TYPE_PSP_IPKEYMGR_DRV or version[0] >= 14:
            yield image.parts[kind], command


def _parts(chip: Chip) -> Iterator[Part]:
    """Firmware for the ring, in the order of Linux's numbers (AMDGPU_UCODE_ID_*)."""
    files, read = chip.firmware, chip.load
    yield from ucode.parse_sdma(files.sdma.name, read(files.sdma))
    stacks = []
    for name, wanted in (("pfp", files.pfp), ("me", files.me), ("mec", files.mec)):
        if wanted is None:
            continue
        image = ucode.parse_core(wanted.name, read(wanted))
        chip.starts[name] = image.start
        code, data = _STACKS[name]
        yield Part(code, image.code)
        count = _PIPES_12[name] if chip.gc[0] >= 12 else len(data)
        stacks += [Part(kind, image.stack) for kind in data[:count]]
    yield from stacks
    yield from ucode.parse_imu(files.imu.name, read(files.imu))
    yield from ucode.parse_rlc(files.rlc.name, read(files.rlc))
