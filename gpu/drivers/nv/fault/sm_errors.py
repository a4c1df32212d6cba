"""What the GPU tells of a fault beyond the notifier: errors of its SMs, addresses of its MMU.

Through a debugger object, which must be attached before the fault. Commands:
ctrl/ctrl83de/ctrl83dedebug.h of open-gpu-kernel-modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import classes as ids
from gpu.autogen.nv import control
from gpu.autogen.nv.alloc import NV83DE_ALLOC_PARAMETERS
from gpu.core.errors import RmError
from gpu.drivers.nv.rm.object import RmObject

_SMS_PER_CALL: Final = 100
_MAX_MMU_FAULTS: Final = 4
_KIND: Final = 0xFFFF

WARP_ERRORS: Final = {
    0x01: "stack error",
    0x04: "program counter wrapped",
    0x05: "misaligned program counter",
    0x06: "program counter out of range",
    0x07: "misaligned constant address",
    0x08: "misaligned register",
    0x09: "illegal instruction",
    0x0B: "illegal operand of an instruction",
    0x0C: "constant address out of range",
    0x0D: "register out of range",
    0x0E: "address out of range",
    0x0F: "misaligned address",
    0x10: "address in no memory of that kind",
}
"""What HWW_WARP_ESR's kinds of errors are.

gf100_mp_warp_error of Linux's nouveau (gr/gf100.c); GPUs newer than it may count differently.
"""


@dataclass(frozen=True, slots=True)
class SmError:
    """An SM that stopped.

    Attributes:
        sm: which one.
        warp_error: its HWW_WARP_ESR, whose low 16 bits are the kind of error.
        pc: of the warp that erred, a GPU address within a program.
    """

    sm: int
    warp_error: int
    pc: int

    def __str__(self) -> str:
        kind = WARP_ERRORS.get(self.warp_error & _KIND)
        name = f" ({kind})" if kind else ""
        return f"SM {self.sm} stopped at {self.pc:#x} with warp error {self.warp_error:#x}{name}"


@dataclass(frozen=True, slots=True)
class MmuFault:
    """An access that the MMU refused; the types are numbers of its hardware."""

    address: int
    fault_type: int
    access_type: int

    def __str__(self) -> str:
        return (
            f"access to {self.address:#x} refused"
            f" (fault type {self.fault_type}, access type {self.access_type})"
        )


@dataclass(frozen=True, slots=True)
class FaultDetails:
    """The SMs with an error, and the accesses that were refused.

    ``unread`` is why accesses could not be read although there were some; else it is empty.
    """

    sms: tuple[SmError, ...]
    accesses: tuple[MmuFault, ...]
    unread: str = ""

    @property
    def address(self) -> int | None:
        """The first address that was refused."""
        return self.accesses[0].address if self.accesses else None

    def __str__(self) -> str:
        told = [str(each) for each in (*self.accesses, *self.sms[:_MAX_MMU_FAULTS])]
        if self.unread:
            told.append(f"the address that the MMU refused could not be read: {self.unread}")
        return "; ".join(told)


def attach_debugger(device: RmObject, compute: RmObject) -> RmObject:
    """An object through which the errors of a compute object's SMs can be read."""
    params = NV83DE_ALLOC_PARAMETERS(hAppClient=device.client.handle, hClass3dObject=compute.handle)
    return device.alloc(ids.GT200_DEBUGGER, params, name="debugger")


def read_details(debugger: RmObject, channel: RmObject, sms: int) -> FaultDetails:
    """What ``sms`` SMs and the MMU tell. Raises as `RmObject.control` does.

    Where the kernel tells no refused accesses, as gVisor's nvproxy, the SMs are told without them.
    """
    errors: list[SmError] = []
    has_mmu_fault = False
    for first in range(0, sms, _SMS_PER_CALL):
        count = min(_SMS_PER_CALL, sms - first)
        states = debugger.control(
            control.NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES,
            control.NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS(
                hTargetChannel=channel.handle, numSMsToRead=count, startingSM=first
            ),
        )
        has_mmu_fault |= bool(states.mmuFault.valid)
        for number, state in enumerate(states.smErrorStateArray[:count], first):
            if state.hwwWarpEsr or state.hwwGlobalEsr:
                pc = state.hwwWarpEsrPc64
                errors.append(SmError(number, state.hwwWarpEsr, pc))
    accesses: tuple[MmuFault, ...] = ()
    unread = ""
    if has_mmu_fault:
        try:
            accesses = _read_mmu(debugger)
        except RmError as error:
            unread = error.message
    return FaultDetails(tuple(errors), accesses, unread)


def _read_mmu(debugger: RmObject) -> tuple[MmuFault, ...]:
    params = debugger.control(
        control.NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO,
        control.NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS(),
    )
    found = params.mmuFaultInfoList[: min(params.count, _MAX_MMU_FAULTS)]
    return tuple(MmuFault(each.faultAddress, each.faultType, each.accessType) for each in found)
