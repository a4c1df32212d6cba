"""Names and statuses of the nvidia driver's ioctls, from their bytes, and names of KFD's.

Both escapes of RM and ioctls of UVM return 0 where the kernel understood them; what became of them
stands inside the argument. The layouts are those of `gpu.autogen.nv`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

from gpu.autogen import kfd
from gpu.autogen.nv import rm, uvm
from gpu.autogen.nv.classes import class_name
from gpu.autogen.nv.control import control_name
from gpu.autogen.nv.layout import offset_of
from gpu.autogen.nv.status import status_name
from gpu.core.traceevent import Event, Ioctl
from gpu.transport import amd
from gpu.transport import nvidia as nodes
from gpu.transport.ioctl import decode

_STATUS_SIZE: Final = 4
# Escapes that the driver does not use: nv_escape.h and nv-ioctl-numbers.h.
_OTHER_NAMES: Final = {
    0x34: "DUP_OBJECT",
    0x35: "SHARE",
    0x57: "MAP_MEMORY_DMA",
    0x58: "UNMAP_MEMORY_DMA",
    206: "ALLOC_OS_EVENT",
    207: "FREE_OS_EVENT",
    209: "STATUS_CODE",
    210: "CHECK_VERSION_STR",
    211: "IOCTL_XFER",
    212: "ATTACH_GPUS_TO_FD",
    214: "SYS_PARAMS",
    217: "EXPORT_TO_DMABUF_FD",
    218: "WAIT_OPEN_COMPLETE",
}
_NAMES: Final = _OTHER_NAMES | {
    number: name.removeprefix("NV_ESC_")
    for name, number in vars(rm).items()
    if name.startswith("NV_ESC_")
}
# Of NVOS46 and NVOS47 the size tells the branch: 56 and 40 bytes before 580.
_STATUS_AT: Final[dict[tuple[int, int], int]] = {
    (number, ctypes.sizeof(struct)): offset_of(struct, "status")
    for number, struct in (
        (rm.NV_ESC_RM_FREE, rm.NVOS00_PARAMETERS),
        (rm.NV_ESC_RM_CONTROL, rm.NVOS54_PARAMETERS),
        (rm.NV_ESC_RM_ALLOC, rm.NVOS21_PARAMETERS),
        (rm.NV_ESC_RM_ALLOC, rm.NVOS64_PARAMETERS),
        (rm.NV_ESC_RM_UNMAP_MEMORY, rm.NVOS34_PARAMETERS),
    )
} | {
    (rm.NV_ESC_RM_ALLOC_MEMORY, 56): offset_of(rm.NVOS02_PARAMETERS, "status"),
    (rm.NV_ESC_RM_MAP_MEMORY, 56): offset_of(rm.NVOS33_PARAMETERS, "status"),
    (0x57, 56): 48,
    (0x57, 64): 56,
    (0x58, 40): 32,
    (0x58, 48): 40,
}
_CLASS_AT: Final = offset_of(rm.NVOS64_PARAMETERS, "hClass")
_COMMAND_AT: Final = offset_of(rm.NVOS54_PARAMETERS, "cmd")


def _uvm_statuses() -> dict[tuple[int, int], int]:
    structs = {name: each for name, each in vars(uvm).items() if isinstance(each, type)}
    found = {}
    for number, name in uvm.NAMES.items():
        for branch in ("", "_535"):
            struct = structs.get(f"{name}_PARAMS{branch}")
            if struct is not None:
                found[number, ctypes.sizeof(struct)] = offset_of(struct, "rmStatus")
    return found


_KFD_NAMES: Final = {
    number: name.removeprefix("AMDKFD_IOC_")
    for name, number in vars(kfd).items()
    if name.startswith("AMDKFD_IOC_")
}
_UVM_STATUS_AT: Final = _uvm_statuses()


@dataclass(frozen=True, slots=True)
class Described:
    """An ioctl in words; ``status`` is None where its argument holds none that is known."""

    name: str
    status: int | None

    @property
    def status_name(self) -> str:
        """The NV_* name of the status; empty without one."""
        if self.status is None:
            return ""
        name = status_name(self.status)
        return name if name != "unknown" else f"{self.status:#x}"


def describe_ioctl(path: str, request: int, argument: bytes) -> Described:
    """What an ioctl of an nvidia node was, from its argument as the kernel left it."""
    if path == nodes.UVM:
        at = _UVM_STATUS_AT.get((request, len(argument)))
        return Described(uvm.uvm_name(request), _status(argument, at))
    number, size = decode(request).number, decode(request).size
    name = _NAMES.get(number, f"escape {number:#x}")
    if number == rm.NV_ESC_RM_ALLOC and len(argument) > _CLASS_AT + 4:
        name += " " + class_name(int.from_bytes(argument[_CLASS_AT : _CLASS_AT + 4], "little"))
    if number == rm.NV_ESC_RM_CONTROL and len(argument) > _COMMAND_AT + 4:
        command = int.from_bytes(argument[_COMMAND_AT : _COMMAND_AT + 4], "little")
        name += " " + control_name(command)
    return Described(name, _status(argument, _STATUS_AT.get((number, size))))


def describe_event(event: Event) -> Described | None:
    """The same for an event of a trace; None for what is no ioctl of a node that is known here.

    Calls of KFD have no status but the errno.
    """
    if not isinstance(event, Ioctl):
        return None
    if event.path == amd.KFD:
        return Described(_KFD_NAMES.get(event.request, f"call {event.request:#x}"), None)
    if not event.path.startswith("/dev/nvidia"):
        return None
    return describe_ioctl(event.path, event.request, event.memory[0].after)


def _status(argument: bytes, at: int | None) -> int | None:
    if at is None or at + _STATUS_SIZE > len(argument):
        return None
    return int.from_bytes(argument[at : at + _STATUS_SIZE], "little")
