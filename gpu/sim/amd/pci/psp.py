"""The security processor: its bootloader, then its operating system (sOS) behind a ring.

psp_v13_0.c, psp_v14_0.c, psp_gfx_if.h and amdgpu_psp.c of Linux 6.12. Status codes of commands
beside 0 are GlobalPlatform's TEE ones (U: amdgpu tells success from all others only).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.sim.amd.pci.firmware import KDB, KINDS, SOS, SYS, TOC, why_refused
from gpu.sim.amd.pci.gmc import Vmid
from gpu.sim.amd.pci.registers import Refused
from gpu.sim.amd.pci.silicon import FB_BASE, Silicon
from gpu.sim.translate import PageFault

READY: Final = 1 << 31
_MIB: Final = 1 << 20
_COMPONENT_NS, _SOS_NS, _RING_NS, _COMMAND_NS = 200_000, 2_000_000, 100_000, 50_000
_AUTOLOAD_NS: Final = 1_000_000
_LOAD_SOS: Final = 0x20000
# Commands of the bootloader, in the order in which psp_hw_start sends them, and what is loaded;
# None where releases differ (Linux sends 13.0 the key database in the place of SPL).
_COMPONENTS: Final = {
    0x80000: KDB,
    0x10000000: None,
    0x10000: SYS,
    0xB0000: None,
    0xD0000: None,
    0xC0000: None,
    0xE0000: None,
    0xF0000: None,
    _LOAD_SOS: SOS,
}
_NEEDED: Final = {0x80000: "the key database", 0x10000: "the system driver"}
_KM_RING, _DESTROY, _MODE1 = 2 << 16, 3 << 16, 7 << 16
_FRAME: Final = struct.Struct("<6I2IBBH7I")
_RESPONSE, _FENCE_AT = 864, 3
_SETUP_TMR, _LOAD_IP_FW, _DESTROY_TMR, _LOAD_TOC, _AUTOLOAD = 5, 6, 7, 0x20, 0x21
BAD_PARAMETERS, BAD_STATE, NOT_SUPPORTED, SECURITY = (
    *(0xFFFF0006, 0xFFFF0007),
    *(0xFFFF000A, 0xFFFF000F),
)
TMR_BYTES: Final = 0x1300000
SMU_TYPE, RLC_G_TYPE = 18, 8
# What must be there before the graphics core starts itself: RLC's parts, IMU, MEC and its stacks.
# MEC of GFX11 has four pipes, of GFX12 two (gfx_v12_0_init_microcode).
_FOR_AUTOLOAD: Final = frozenset((8, 26, 48, 68, 69, 71, 89, 94, 95))
_FOR_GFX11: Final = frozenset((72, 96, 97))
_FOR_GFX12: Final = frozenset((87, 88))


class CommandError(Exception):
    """A command that sOS refuses: its status, and why."""

    def __init__(self, status: int, why: str):
        self.status = status
        super().__init__(why)


class Psp:
    """The security processor.

    Attributes:
        loaded: types of firmware that it has given to their blocks.
        on_loaded, on_autoload, on_mode1: are told of a type, of the graphics core's start, and of
            a reset of the whole chip.
    """

    def __init__(self, chip: Silicon, memory: Vmid, settle_ns: int):
        """`memory` is what it reads; video memory is trained so long after power-on."""
        self._chip = chip
        self._memory = memory
        self._settle_ns = settle_ns
        prefix = "MP0" if "MP0_SMN_C2PMSG_33" in chip.regs.names() else "MPASP"
        self._name = f"{prefix}_SMN_C2PMSG_{{}}"
        self.on_ready: Callable[[], None] = lambda: None
        self.on_loaded: Callable[[int], None] = lambda kind: None
        self.on_autoload: Callable[[], None] = lambda: None
        self.on_mode1: Callable[[], None] = lambda: None
        hooks = {33: self._fixed, 35: self._component, 64: self._control, 67: self._wptr}
        for number, write in (*hooks.items(), (81, self._fixed)):
            chip.regs.hook(self._name.format(number), write=write)
        self._forget()

    def reset(self) -> None:
        """As after power-on, when memory is being trained."""
        self._forget()
        self._chip.later.after(self._settle_ns, "train memory", self._settled)

    @property
    def is_alive(self) -> bool:
        """Whether sOS runs."""
        return self._get(81) != 0

    @property
    def tmr(self) -> range:
        """Video memory that nobody else may use, as offsets; empty before it is set up."""
        return self._tmr

    def _forget(self) -> None:
        self.loaded: set[int] = set()
        self._started: list[int] = []
        self._ring: tuple[int, int] | None = None
        self._rptr = 0
        self._toc = 0
        self._tmr = range(0)

    def _settled(self) -> None:
        self._set(33, READY)
        self._set(35, READY)
        self.on_ready()

    def _get(self, number: int) -> int:
        return self._chip.regs.value(self._name.format(number))

    def _set(self, number: int, value: int) -> None:
        self._chip.regs.set(self._name.format(number), value)

    def _fixed(self, value: int) -> None:
        raise Refused("firmware alone writes it")

    # The bootloader.

    def _component(self, command: int) -> None:
        if self.is_alive:
            raise Refused("the bootloader has ended, as sOS runs")
        if not self._get(35) & READY:
            raise Refused(f"the bootloader is not ready, C2PMSG_35 is {self._get(35):#x}")
        if command not in _COMPONENTS:
            raise Refused("it is no command of the bootloader")
        self._set(35, 0)
        why = self._why_not(command)
        if why:
            self._chip.violation(f"PSP bootloader, command {command:#x}: {why}")
        done = partial(self._component_done, command, bool(why))
        delay = _SOS_NS if command == _LOAD_SOS and not why else _COMPONENT_NS
        self._chip.later.after(delay, f"load component {command:#x}", done)

    def _why_not(self, command: int) -> str:
        order = list(_COMPONENTS)
        if self._started and order.index(command) <= order.index(self._started[-1]):
            return f"it comes after {self._started[-1]:#x}"
        for needed, name in _NEEDED.items():
            if order.index(command) > order.index(needed) and needed not in self._started:
                return f"{name} was not loaded"
        address = self._get(36) << 20
        try:
            data = self._memory.load(address, _MIB)
        except PageFault as fault:
            return f"C2PMSG_36: {fault}"
        why = why_refused(data, _COMPONENTS[command])
        return f"at {address:#x} {why}" if why else ""

    def _component_done(self, command: int, failed: bool) -> None:
        if failed:
            self._set(35, READY | 1)
            return
        self._started.append(command)
        if command == _LOAD_SOS:
            self._set(81, 0x310025)
            self._set(64, READY)
        self._set(35, READY)

    # The ring.

    def _control(self, command: int) -> None:
        if not self.is_alive:
            raise Refused("sOS does not run")
        if not self._get(64) & READY:
            raise Refused("sOS has not answered the last one")
        if command == _MODE1:
            self._chip.later.after(_COMMAND_NS, "reset the chip", self.on_mode1)
            return
        if command not in (_KM_RING, _DESTROY):
            raise Refused("it is no command that is known")
        self._set(64, 0)
        status = 0
        if command == _DESTROY:
            self._ring = None
        elif why := self._ring_fault():
            self._chip.violation(f"PSP ring: {why}")
            status = BAD_PARAMETERS & 0xFFFF
        else:
            self._ring, self._rptr = (self._get(69) | self._get(70) << 32, self._get(71)), 0
            self._set(67, 0)
        self._chip.later.after(
            _RING_NS, "answer a ring command", lambda: self._set(64, READY | status)
        )

    def _ring_fault(self) -> str:
        address, size = self._get(69) | self._get(70) << 32, self._get(71)
        if self._ring is not None:
            return "there is one already"
        if address % 4096 or not size or size % 4096:
            return f"{size:#x} bytes at {address:#x} are not whole pages"
        try:
            self._memory.load(address, size)
        except PageFault as fault:
            return str(fault)
        return ""

    def _wptr(self, value: int) -> None:
        if self._ring is None:
            raise Refused("there is no ring")
        frame, size = _FRAME.size // 4, self._ring[1] // 4
        if value % frame or value >= size:
            raise Refused(f"frames have {frame:#x} dwords, the ring {size:#x}")
        self._set(67, value)
        count = (value - self._rptr) % size // frame
        for number in range(count):
            at = self._ring[0] + 4 * ((self._rptr + number * frame) % size)
            self._chip.later.after(
                _COMMAND_NS * (number + 1), "carry out a command", partial(self._frame, at)
            )
        self._rptr = value

    def _frame(self, at: int) -> None:
        try:
            words = _FRAME.unpack(self._memory.load(at, _FRAME.size))
            buffer, fence = words[0] | words[1] << 32, words[3] | words[4] << 32
            if buffer % 4096 or fence % 4 or any(words[6:]):
                self._chip.violation(
                    f"PSP frame at {at:#x}: buffer {buffer:#x}, fence {fence:#x}, or bytes behind "
                    "them: buffers begin at a page, the rest is 0"
                )
                return
            self._command(buffer)
            self._memory.store(fence, words[5].to_bytes(4, "little"))
        except PageFault as fault:
            self._chip.violation(f"PSP frame at {at:#x}: {fault}")

    def _command(self, buffer: int) -> None:
        data = self._memory.load(buffer, 1024)
        number, body = int.from_bytes(data[8:12], "little"), struct.unpack_from("<8I", data, 28)
        response = [0, 0, 0, 0, 0]
        try:
            if number == _LOAD_TOC:
                response[4] = self._load_toc(body)
            elif number == _SETUP_TMR:
                self._setup_tmr(body, buffer)
            elif number == _LOAD_IP_FW:
                self._load_ip_fw(body)
            elif number == _AUTOLOAD:
                self._autoload()
            elif number == _DESTROY_TMR:
                self._tmr = range(0)
            else:
                self._chip.sim.debug.note(f"PSP command {number:#x} is not modelled")
                response[0] = NOT_SUPPORTED
        except CommandError as error:
            self._chip.violation(f"PSP command {number:#x}: {error}")
            response[0] = error.status
        self._memory.store(buffer + _RESPONSE, struct.pack("<5I", *response))

    def _image(self, body: tuple[int, ...], kind: int | None) -> None:
        address, size = body[0] | body[1] << 32, body[2]
        if address % 4096:
            raise CommandError(BAD_PARAMETERS, f"{address:#x} does not begin a page")
        if why := why_refused(self._memory.load(address, size), kind):
            raise CommandError(SECURITY, f"at {address:#x} {why}")

    def _load_toc(self, body: tuple[int, ...]) -> int:
        self._image(body, TOC)
        self._toc = TMR_BYTES
        return TMR_BYTES

    def _setup_tmr(self, body: tuple[int, ...], buffer: int) -> None:
        if self._chip.board.is_gfx12:
            raise CommandError(BAD_STATE, "it was set up at boot")
        start, size = (body[0] | body[1] << 32) - FB_BASE, body[2]
        if not self._toc:
            raise CommandError(BAD_STATE, "its size comes from a table of contents (TOC)")
        if size < self._toc or start % _MIB or not 0 <= start <= self._chip.vram.size - size:
            raise CommandError(
                BAD_PARAMETERS,
                f"{size:#x} bytes at {start:#x} of video memory, {self._toc:#x} at a MiB wanted",
            )
        region = range(start, start + size)
        for address in (buffer, self._ring[0] if self._ring else buffer):
            mapping = self._memory.translate(address, write=True)
            place = mapping.offset + address - mapping.start
            if mapping.region is self._chip.vram and place in region:
                raise CommandError(BAD_PARAMETERS, f"it covers {place:#x}, which is in use")
        self._tmr = region

    def _load_ip_fw(self, body: tuple[int, ...]) -> None:
        kind = body[3]
        if kind not in KINDS:
            raise CommandError(NOT_SUPPORTED, f"firmware of type {kind} is not this chip's")
        if kind != SMU_TYPE and not self._has_tmr:
            raise CommandError(BAD_STATE, f"firmware of type {kind} before the TMR is set up")
        if RLC_G_TYPE in self.loaded and kind != SMU_TYPE:
            raise CommandError(BAD_STATE, f"firmware of type {kind} after RLC's, which is the last")
        self._image(body, KINDS[kind])
        self.loaded.add(kind)
        self.on_loaded(kind)

    @property
    def _has_tmr(self) -> bool:
        return self._chip.board.is_gfx12 or bool(self._tmr)

    def _autoload(self) -> None:
        needed = _FOR_AUTOLOAD | (_FOR_GFX12 if self._chip.board.is_gfx12 else _FOR_GFX11)
        if missing := sorted(needed - self.loaded):
            raise CommandError(BAD_STATE, f"firmware of types {missing} was not loaded")
        self._chip.regs.set("CP_STAT", 1 << 15 | 1 << 17)  # PFP and ME are busy
        self._chip.later.after(_AUTOLOAD_NS, "load RLC's firmware", self._loaded_by_rlc)

    def _loaded_by_rlc(self) -> None:
        self._chip.regs.set("CP_STAT", 0)
        self._chip.regs.set("RLC_RLCS_BOOTLOAD_STATUS", 1 << 31 | 1)
        self.on_autoload()
