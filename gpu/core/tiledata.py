"""Leave to use AMX's tile registers, which Linux gives to a process that asks for it.

A thread's tiles are 8 KiB that no signal frame has room for unless a process knows of them
(Linux, `Documentation/arch/x86/xstate.rst`). The leave holds for all threads and forked children.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from functools import cache
from typing import Final

_SYS_ARCH_PRCTL: Final = 158  # arch/x86/entry/syscalls/syscall_64.tbl
_ARCH_REQ_XCOMP_PERM: Final = 0x1023  # arch/x86/include/uapi/asm/prctl.h
_XFEATURE_XTILEDATA: Final = 18  # arch/x86/include/asm/fpu/types.h


@cache
def tiles_refused() -> str:
    """Why this process may not use tiles, or "" once it may; asks the system at the first call."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return "only Linux on x86-64 is known to give them"
    library = ctypes.CDLL(None, use_errno=True)
    arguments = (_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    if library.syscall(*map(ctypes.c_long, arguments)) == 0:
        return ""
    number = ctypes.get_errno()
    return f"arch_prctl says {errno.errorcode.get(number, number)}, {os.strerror(number)}"
