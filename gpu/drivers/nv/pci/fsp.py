"""FSP, the security processor of Hopper and Blackwell: its mailbox, and what it is asked to start.

A packet goes into EMEM at offset 0 and is announced by TAIL, then HEAD, both in bytes; TAIL is that
of the last dword. FSP sets HEAD to TAIL when it has taken it, and answers in the same place through
MSGQ_HEAD and MSGQ_TAIL. What it writes is not believed: sizes and headers are checked.

Source: kern_fsp_gh100.c, kern_fsp.c and fsp_*.h of open-gpu-kernel-modules at tag 570.144.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from gpu.autogen.nv import gsp
from gpu.core.bits import align_up
from gpu.core.errors import FirmwareError, InvalidValue
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci.chip import NvCard
from gpu.drivers.nv.pci.chips import Chip
from gpu.drivers.nv.pci.images import Fmc
from gpu.drivers.nv.pci.registers import EMEMC, Value

_DWORD: Final = 4
_BLOCK: Final = 64  # dwords
_HEADERS: Final = struct.Struct("<II")  # of MCTP, then of NVDM
_RESPONSE: Final = _HEADERS.size + ctypes.sizeof(gsp.NVDM_PAYLOAD_COMMAND_RESPONSE)
_WHOLE: Final = gsp.MCTP_HEADER_SOM | gsp.MCTP_HEADER_EOM
_FRTS_SIZE: Final = 1 << 20
_FRTS_ALIGN: Final = 0x20_0000
_EXTRA_RESERVE: Final = 4096  # kfspGetExtraReservedMemorySize_GH100
_SEND_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 4.0
_CODES: Final = {
    gsp.FSP_ERR_IFR_FILE_NOT_FOUND: "a file is not found",
    gsp.FSP_ERR_IFS_ERR_NOT_SUPPORTED: "not supported",
    gsp.FSP_ERR_IFS_ERR_INVALID_DATA: "invalid data",
}


def nvdm_header(kind: int) -> int:
    """The word that says which of NVIDIA's messages follows."""
    vendor = gsp.MCTP_MSG_HEADER_VENDOR_ID_NV << 8
    return gsp.MCTP_MSG_HEADER_TYPE_VENDOR_PCI | vendor | kind << 24


def make_packet(kind: int, payload: bytes) -> bytes:
    """A message in one packet. Raises InvalidValue for one that the mailbox cannot hold."""
    packet = _HEADERS.pack(_WHOLE, nvdm_header(kind)) + payload
    if len(packet) > gsp.FSP_EMEM_CHANNEL_RM_SIZE:
        raise InvalidValue(
            f"a packet of {len(packet)} bytes for FSP: {gsp.FSP_EMEM_CHANNEL_RM_SIZE} fit"
        )
    return packet.ljust(align_up(len(packet), _DWORD), b"\0")


def frts_offset(chip: Chip) -> int:
    """How far from the end of video memory the end of FRTS is, in bytes."""
    if not chip.pmu_reserve:
        return chip.end_reserve
    return align_up(chip.end_reserve + _EXTRA_RESERVE + chip.pmu_reserve, _FRTS_ALIGN)


def make_cot(chip: Chip, fmc: Fmc, fmc_address: int, arguments: int) -> bytes:
    """The message that starts the chain of trust: FSP fetches the FMC, verifies and starts it.

    ``arguments`` is where the FMC finds its own (`gsp.GSP_FMC_BOOT_PARAMS`).
    """
    cot = gsp.NVDM_PAYLOAD_COT(
        version=chip.cot_version,
        size=ctypes.sizeof(gsp.NVDM_PAYLOAD_COT),
        gspFmcSysmemOffset=fmc_address,
        frtsVidmemOffset=frts_offset(chip),
        frtsVidmemSize=_FRTS_SIZE,
        gspBootArgsSysmemOffset=arguments,
    )
    for name, data in (("hash384", fmc.hash), ("publicKey", fmc.key), ("signature", fmc.signature)):
        field = getattr(cot, name)
        ctypes.memmove(field, data, min(len(data), ctypes.sizeof(field)))
    return make_packet(gsp.NVDM_TYPE_COT, bytes(cot))


def check_response(packet: bytes, kind: int) -> None:
    """Raises FirmwareError unless a packet is FSP's answer to such a message, and says success."""
    if len(packet) < _RESPONSE:
        raise FirmwareError(f"FSP's answer has {len(packet)} bytes, {_RESPONSE} are wanted")
    mctp, nvdm = _HEADERS.unpack_from(packet)
    if mctp & _WHOLE != _WHOLE:
        raise FirmwareError(f"FSP's answer: MCTP header at offset 0 is {mctp:#010x}, not a whole")
    if nvdm != nvdm_header(gsp.NVDM_TYPE_FSP_RESPONSE):
        raise FirmwareError(
            f"FSP's answer: NVDM header at offset 4 is {nvdm:#010x}, wanted"
            f" {nvdm_header(gsp.NVDM_TYPE_FSP_RESPONSE):#010x}"
        )
    said = gsp.NVDM_PAYLOAD_COMMAND_RESPONSE.from_buffer_copy(packet, _HEADERS.size)
    if said.commandNvdmType != kind:
        raise FirmwareError(
            f"FSP's answer: commandNvdmType at offset 12 is {said.commandNvdmType:#x}, asked was"
            f" {kind:#x}"
        )
    if said.errorCode:
        words = _CODES.get(said.errorCode, "it is not told what that is")
        raise FirmwareError(
            f"FSP refused message {kind:#x}: its task {said.taskId:#x} says error"
            f" {said.errorCode:#x} ({words})"
        )


class Mailbox:
    """The queue of FSP that is RM's."""

    def __init__(self, card: NvCard):
        """Nothing is touched."""
        self._card = card
        self._fsp = card.registers.fsp

    def ask(self, kind: int, packet: bytes) -> None:
        """Sends a message, and waits for the answer. Raises FirmwareError, BootError, BootTimeout.

        A timeout tells what FSP left in its scratch registers.
        """
        self._send(packet)
        check_response(self._receive(), kind)

    def _get(self, name: str) -> int:
        return self._fsp.read(name).value

    def _put(self, name: str, value: int) -> None:
        self._fsp.write(Value(VALUE=value), name)

    def _differ(self, head: str, tail: str) -> int:
        """How much further the tail is; both are read."""
        return self._get(tail) - self._get(head)

    def _send(self, packet: bytes) -> None:
        self._card.wait_value(
            lambda: self._differ("QUEUE_HEAD", "QUEUE_TAIL"),
            lambda value: value == 0,
            *("FSP.QUEUE_TAIL", "that of FSP.QUEUE_HEAD: it takes no packet", _SEND_SECONDS),
        )
        self._fsp.write(EMEMC(OFFS=0, BLK=0, AINCW=1))
        for (word,) in struct.iter_unpack("<I", packet):
            self._put("EMEMD", word)
        self._check_moved(len(packet))
        self._put("QUEUE_TAIL", len(packet) - _DWORD)
        self._put("QUEUE_HEAD", 0)  # tells FSP, so it comes last

    def _receive(self) -> bytes:
        try:
            self._card.wait_value(
                lambda: self._differ("MSGQ_HEAD", "MSGQ_TAIL"),
                lambda value: value != 0,
                *("FSP.MSGQ_TAIL", "another value than FSP.MSGQ_HEAD: an answer", _ANSWER_SECONDS),
            )
        except BootTimeout as error:
            scratch = [self._fsp.read("SCRATCH_GROUP_2", index).value for index in range(4)]
            error.add(f"FSP's scratch registers hold {', '.join(map(hex, scratch))}")
            raise
        head, tail = self._get("MSGQ_HEAD"), self._get("MSGQ_TAIL")
        size = tail - head + _DWORD
        if not _DWORD <= size <= gsp.FSP_EMEM_CHANNEL_RM_SIZE or size % _DWORD:
            raise FirmwareError(
                f"FSP.MSGQ_HEAD is {head:#x}, FSP.MSGQ_TAIL {tail:#x}: {size} bytes are no packet"
            )
        self._fsp.write(EMEMC(OFFS=0, BLK=0, AINCR=1))
        words = [self._get("EMEMD") for _ in range(size // _DWORD)]
        self._check_moved(size)
        self._put("MSGQ_TAIL", head)
        self._put("MSGQ_HEAD", head)
        return struct.pack(f"<{len(words)}I", *words)

    def _check_moved(self, size: int) -> None:
        """Raises BootError unless EMEM's place went on by itself."""
        place = self._fsp.read(EMEMC)
        if size // _DWORD != place.BLK * _BLOCK + place.OFFS:
            wanted = f"{size // _DWORD:#x} dwords on"
            raise self._card.fail(self._fsp, "EMEMC", place.value, wanted)
