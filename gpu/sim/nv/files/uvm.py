"""/dev/nvidia-uvm: a request is a plain number, and the status is in the argument."""

from __future__ import annotations

import ctypes
import errno
from typing import Final

from gpu.autogen.nv.uvm import NAMES
from gpu.sim.kernel import SysError
from gpu.sim.nv.rm.state import RmState
from gpu.sim.nv.rm.status import Status
from gpu.sim.nv.uvm.calls import CALLS, answer
from gpu.sim.nv.uvm.space import UvmSpace
from gpu.sim.process import ArgumentBytes, SimFile, SimProcess

_DEINITIALIZE: Final = 0x30000002


class UvmFile(SimFile):
    """One open /dev/nvidia-uvm; `spaces` are those of all of them."""

    def __init__(self, rm: RmState, process: SimProcess, spaces: list[UvmSpace]):
        self.space = UvmSpace(rm, process.pid, self._opened)
        self._process = process
        self._spaces = spaces
        spaces.append(self.space)

    def call_name(self, request: int) -> str:
        """As uvm_ioctl.h has it."""
        return NAMES.get(request, "")

    def refuse(self, request: int, argument: ArgumentBytes, answer: str) -> int:
        """As `SimFile.refuse`, or with a status in the argument."""
        call = CALLS.get(request)
        if answer not in Status.__members__ or call is None:
            return super().refuse(request, argument, answer)
        args = self.space.rm.branch.layout(call.layout).parse(bytes(argument))
        args["rmStatus"] = Status[answer]
        ctypes.memmove(argument, bytes(args.data), len(args.data))
        return 0

    def ioctl(self, process: SimProcess, request: int, argument: ArgumentBytes) -> int:
        """Makes a call; see `CALLS`."""
        rm, call = self.space.rm, CALLS.get(request)
        if call is None and request != _DEINITIALIZE:
            rm.debug.note(f"UVM call {request:#x} is unknown or not modelled")
            raise SysError(errno.EINVAL, f"UVM call {request:#x}")
        if process is not self._process:
            raise SysError(errno.EBADF, "a file of UVM belongs to the process that opened it")
        if call is None:
            return 0
        size = rm.branch.layout(call.layout).size
        if len(argument) < size:
            raise SysError(errno.EFAULT, f"an argument of {len(argument)} bytes, not {size}")
        data = ctypes.string_at(argument, size)
        ctypes.memmove(argument, answer(self.space, request, data), size)
        return 0

    def _opened(self, fd: int) -> UvmSpace | None:
        """What a descriptor of the process is of, if it is a file of UVM."""
        try:
            found = self._process.file(fd).file
        except SysError:
            return None
        return found.space if isinstance(found, UvmFile) else None

    def released(self) -> None:
        """The VA space ends with its file."""
        self.space.end()
        self._spaces.remove(self.space)
