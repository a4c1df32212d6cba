"""FSP, the processor that starts all others: its memory, its queues, and what it is asked.

A driver writes a packet into the first 1 KiB of EMEM, whose port counts by itself, then the
queue's tail (its last word) and head; the answer lies in the same place, between MSGQ_HEAD and
MSGQ_TAIL, until the driver makes these equal (kern_fsp_gh100.c). The packet is MCTP, with NVIDIA's
messages (NVDM) in it, of which the one that boots GSP is the chain of trust (COT).
Error codes are those of kern_fsp_retval.h; which one comes when, and that the task is 0, is
nowhere published: the model's own (U).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from gpu.sim.nv.pci.images import Known, facts_of
from gpu.sim.nv.pci.registers import Refused
from gpu.sim.nv.pci.silicon import Halt, Silicon

CHANNEL_BYTES: Final = 1024
READY: Final = 0xFF
INVALID_STATE, NOT_SUPPORTED, INVALID_DATA = 0x9E, 0xA0, 0xA1
COT, RESPONSE = 0x14, 0x15
COT_FORM: Final = struct.Struct("<HHQQIQI48s384s384sQ")  # NVDM_PAYLOAD_COT, packed
_EMEMC, _QUEUE, _MSGQ, _PORTS = 0x8F2AC0, 0x8F2C00, 0x8F2C80, 8
_SCRATCH: Final = {2: 0x8F0320, 3: 0x8F0330}  # NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_n
_AINCW, _AINCR = 1 << 24, 1 << 25
_OFFSET: Final = 0xFFFC  # block and word of EMEMC
_SOM, _EOM = 1 << 31, 1 << 30
_TYPE: Final = 0x7E | 0x10DE << 8
_VERSION: Final = 0x44C  # of FSP's own code, in scratch group 3
_BOOT_NS, _ANSWER_NS = 150_000_000, 2_000_000
_MIB, _PAGE = 1 << 20, 4096
_SCRUBBED: Final = 256 * _MIB  # at the end of memory, before GSP runs (kernel_gsp_gh100.c)
_VGA: Final = 128 << 10


class Cot(NamedTuple):
    """What the chain of trust is told, as its structure has it."""

    version: int
    size: int
    fmc: int
    frts_sysmem: int
    frts_sysmem_size: int
    frts_vidmem: int
    frts_vidmem_size: int
    hash384: bytes
    key: bytes
    signature: bytes
    arguments: int


class FspError(Exception):
    """A message that FSP does not carry out: the code that it answers with, and why."""

    def __init__(self, code: int, why: str):
        self.code = code
        super().__init__(why)


class Fsp:
    """The processor.

    Attributes:
        on_boot: is given the message that FSP has found good; GSP's first code runs from then on.
    """

    def __init__(self, chip: Silicon, known: Known, settle_ns: int = 0):
        """`settle_ns` is how long it has yet to start, as in a card just plugged in."""
        self._chip = chip
        self._known = known
        self.on_boot: Callable[[Cot], None] = lambda cot: None
        regs = chip.regs
        for port in range(_PORTS):
            ememc, emem = f"NV_PFSP_EMEMC({port})", _EMEMC + 8 * port
            regs.add(ememc, emem, write=partial(self._place, ememc))
            read, write = partial(self._read, ememc), partial(self._write, ememc)
            regs.add(f"NV_PFSP_EMEMD({port})", emem + 4, read=read, write=write)
            queue, msgq = _QUEUE + 8 * port, _MSGQ + 8 * port
            regs.add(f"NV_PFSP_QUEUE_HEAD({port})", queue, write=partial(self._head, port))
            regs.add(f"NV_PFSP_QUEUE_TAIL({port})", queue + 4, write=partial(self._tail, port))
            regs.add(f"NV_PFSP_MSGQ_HEAD({port})", msgq, write=partial(self._taken, "HEAD", port))
            regs.add(
                f"NV_PFSP_MSGQ_TAIL({port})", msgq + 4, write=partial(self._taken, "TAIL", port)
            )
        for group, address in _SCRATCH.items():
            for number in range(4):
                name = f"NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_{group}({number})"
                initial = _VERSION if (group, number) == (3, 1) else 0
                regs.add(name, address + 4 * number, initial, writable=False)
        regs.add("NV_THERM_I2CS_SCRATCH", facts_of(chip.board).status, writable=False)
        self._forget()
        self._start(settle_ns)

    @property
    def is_ready(self) -> bool:
        """Whether it has started."""
        return self._chip.regs.value("NV_THERM_I2CS_SCRATCH") == READY

    def reset(self) -> None:
        """It starts anew."""
        self._forget()
        self._start(_BOOT_NS)

    def _forget(self) -> None:
        self._emem = bytearray(CHANNEL_BYTES)
        self._tail_is_new = self._busy = False

    def _start(self, delay_ns: int) -> None:
        self._chip.later.after(
            delay_ns, "start FSP", partial(self._chip.regs.set, "NV_THERM_I2CS_SCRATCH", READY)
        )

    # The port into its memory.

    def _place(self, register: str, value: int) -> None:
        if value & ~(_OFFSET | _AINCW | _AINCR):
            raise Refused("it has an offset in words, AINCW and AINCR, and no other bits")
        self._chip.regs.set(register, value)

    def _at(self, register: str, step: int) -> int:
        """Where a port is, which goes on by a word where it counts."""
        regs = self._chip.regs
        value = regs.value(register)
        if value & _OFFSET >= CHANNEL_BYTES:
            raise Refused(f"{register} is at {value & _OFFSET:#x}, beyond the driver's 1 KiB")
        if value & step:
            regs.set(register, value + 4)
        return value & _OFFSET

    def _read(self, register: str) -> int:
        at = self._at(register, _AINCR)
        return int.from_bytes(self._emem[at : at + 4], "little")

    def _write(self, register: str, value: int) -> None:
        if self._busy:
            raise Refused("FSP still reads the last packet")
        at = self._at(register, _AINCW)
        self._emem[at : at + 4] = value.to_bytes(4, "little")

    # The queues.

    def _mine(self, channel: int) -> None:
        if channel:
            raise Refused(f"channel {channel} is not the driver's, which has 0")

    def _tail(self, channel: int, value: int) -> None:
        self._mine(channel)
        if self._busy:
            raise Refused("FSP still reads the last packet")
        self._chip.regs.set("NV_PFSP_QUEUE_TAIL(0)", value)
        self._tail_is_new = True

    def _head(self, channel: int, value: int) -> None:
        self._mine(channel)
        regs = self._chip.regs
        tail = regs.value("NV_PFSP_QUEUE_TAIL(0)")
        if not self.is_ready:
            raise Refused("FSP has not started")
        if self._busy:
            raise Refused("FSP still reads the last packet")
        if not self._tail_is_new:
            raise Refused("the tail is written first: the head is what FSP is woken by")
        if regs.value("NV_PFSP_MSGQ_HEAD(0)") != regs.value("NV_PFSP_MSGQ_TAIL(0)"):
            raise Refused("its last answer was not taken, and lies where the packet is")
        self._tail_is_new = False
        if value or tail % 4 or not 4 <= tail < CHANNEL_BYTES:
            raise Refused(
                f"a packet from {value:#x} to the word at {tail:#x}: it begins at 0, and has whole "
                f"words and at most {CHANNEL_BYTES:#x} bytes"
            )
        regs.set("NV_PFSP_QUEUE_HEAD(0)", value)
        self._busy = True
        packet = bytes(self._emem[: tail + 4])
        self._chip.later.after(_ANSWER_NS, "answer a packet", partial(self._answer, packet))

    def _taken(self, which: str, channel: int, value: int) -> None:
        self._mine(channel)
        regs = self._chip.regs
        if value != regs.value("NV_PFSP_MSGQ_HEAD(0)"):
            raise Refused("an answer is taken by making the tail the head")
        regs.set(f"NV_PFSP_MSGQ_{which}(0)", value)

    # What it is asked.

    def _answer(self, packet: bytes) -> None:
        kind, code = int.from_bytes(packet[7:8], "little"), 0
        try:
            cot = self._check_cot(self._open(packet))
        except FspError as error:
            code = error.code
            self._chip.violation(f"FSP: {error}")
        except Halt as error:
            code = INVALID_DATA
            self._chip.violation(f"FSP: {error}")
        answer = struct.pack("<5I", _SOM | _EOM, _TYPE | RESPONSE << 24, 0, kind, code)
        self._emem[: len(answer)] = answer
        regs = self._chip.regs
        regs.set("NV_PFSP_QUEUE_HEAD(0)", regs.value("NV_PFSP_QUEUE_TAIL(0)"))
        regs.set("NV_PFSP_MSGQ_TAIL(0)", len(answer) - 4)
        self._busy = False
        if not code:
            end = self._chip.vram.size - cot.frts_vidmem
            self._chip.wpr2 = range(end - cot.frts_vidmem_size, end)
            self.on_boot(cot)

    def _open(self, packet: bytes) -> bytes:
        """The chain of trust's bytes. Raises FspError."""
        if len(packet) < 8:
            raise FspError(INVALID_DATA, f"{len(packet)} bytes hold no headers")
        mctp, nvdm = struct.unpack_from("<II", packet)
        if ~mctp & (_SOM | _EOM):
            raise FspError(INVALID_DATA, f"MCTP {mctp:#x}: it is not the whole message (SOM, EOM)")
        if mctp & ~(_SOM | _EOM):
            raise FspError(INVALID_DATA, f"MCTP {mctp:#x}: sequence, tag and endpoints are 0")
        if nvdm & 0xFF != _TYPE & 0xFF:
            raise FspError(INVALID_DATA, f"NVDM {nvdm:#x}: not of a vendor of PCI (0x7e)")
        if nvdm >> 8 & 0xFFFF != _TYPE >> 8:
            raise FspError(INVALID_DATA, f"NVDM {nvdm:#x}: the vendor is 0x10de")
        if nvdm >> 24 != COT:
            raise FspError(NOT_SUPPORTED, f"NVDM {nvdm:#x}: only the chain of trust is modelled")
        if len(packet) != 8 + COT_FORM.size:
            raise FspError(
                INVALID_DATA,
                f"a chain of trust of {len(packet) - 8:#x} bytes, {COT_FORM.size:#x} wanted",
            )
        return packet[8:]

    def _check_cot(self, body: bytes) -> Cot:
        """Raises FspError, Halt."""
        cot, version = Cot(*COT_FORM.unpack(body)), facts_of(self._chip.board).cot_version
        if cot.version != version:
            raise FspError(NOT_SUPPORTED, f"COT version {cot.version}, this chip has {version}")
        if cot.size != COT_FORM.size:
            raise FspError(
                INVALID_DATA, f"COT has a size of {cot.size:#x}, {COT_FORM.size:#x} wanted"
            )
        if self._chip.wpr2:
            raise FspError(INVALID_STATE, "a COT while WPR2 is up: GSP was booted before")
        self._check_image(cot)
        for why in self._why_frts(cot):
            raise FspError(INVALID_DATA, why)
        return cot

    def _check_image(self, cot: Cot) -> None:
        fmc = self._known.fmcs.get(cot.hash384)
        if fmc is None:
            raise FspError(INVALID_DATA, f"COT: no image has the hash {cot.hash384[:8].hex()}...")
        if cot.key != fmc.key.ljust(len(cot.key), b"\0"):
            raise FspError(INVALID_DATA, f"COT: not the {len(fmc.key)} bytes of the image's key")
        if cot.signature != fmc.signature.ljust(len(cot.signature), b"\0"):
            raise FspError(
                INVALID_DATA, f"COT: not the {len(fmc.signature)} bytes of the image's signature"
            )
        image = self._chip.fetch(cot.fmc, fmc.size, "the FMC")
        if hashlib.sha384(image).digest() != cot.hash384:
            raise FspError(INVALID_DATA, f"COT: the FMC at {cot.fmc:#x} is not what its hash says")

    def _why_frts(self, cot: Cot) -> Iterator[str]:
        """What is wrong with the places of what the VBIOS leaves for GSP (FRTS)."""
        board, vram = self._chip.board, self._chip.vram.size
        if cot.frts_vidmem_size != _MIB:
            yield f"COT: {cot.frts_vidmem_size:#x} bytes of FRTS in video memory, {_MIB:#x} wanted"
        if cot.frts_vidmem % (2 * _MIB):
            yield f"COT: FRTS at {cot.frts_vidmem:#x} from the end is not at 2 MiB"
        if cot.frts_vidmem < _VGA + board.pmu_reserved:
            yield (
                f"COT: {cot.frts_vidmem:#x} bytes behind FRTS are too few for the VGA workspace "
                f"and {board.pmu_reserved:#x} of PMU's"
            )
        if cot.frts_vidmem + _MIB > min(_SCRUBBED, vram):
            yield f"COT: FRTS at {cot.frts_vidmem:#x} from the end was not scrubbed"
        if cot.frts_sysmem_size not in (0, _MIB) or (cot.frts_sysmem and not cot.frts_sysmem_size):
            place = f"{cot.frts_sysmem_size:#x} bytes of FRTS at {cot.frts_sysmem:#x}"
            yield f"COT: {place} of system memory, {_MIB:#x} or none wanted"
        if cot.frts_sysmem_size:
            self._chip.put(cot.frts_sysmem, bytes(cot.frts_sysmem_size), "FRTS in system memory")
