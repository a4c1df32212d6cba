"""What gVisor lets through to NVIDIA's kernel driver, for a container of compute and utility.

From google/gvisor, pkg/sentry/devices/nvproxy/{version,frontend}.go. A sandbox answers by itself
what it does not know; of UVM it knows all that the model has. It copies parameters by structures of
the driver's version, so that their sizes must be right where the driver itself would not look.
"""

from __future__ import annotations

import errno
from typing import Final

from gpu.sim.kernel import SysError
from gpu.sim.nv.rm.branches import Branch
from gpu.sim.nv.rm.classes import RULES
from gpu.sim.nv.rm.layout import Record
from gpu.sim.nv.rm.status import Status, check

_WAIT_OPEN: Final = 218
_WAIT_OPEN_SINCE: Final = 550
_ESCAPES: Final = frozenset(
    (0x27, 0x29, 0x2A, 0x2B, 0x34, 0x35, 0x4E, 0x4F, 200, 201, 206, 207, 210, 212, 214, _WAIT_OPEN)
)
_COMMANDS: Final = frozenset(
    (
        *(0x101, 0x127, 0x12B, 0x13A, 0x201, 0x205),
        *(0x800201, 0x800292),
        *(0x2080014A, 0x20801201, 0x2080122A, 0x2080122B, 0x20802A03, 0x20802A0A, 0x2080200A),
        *(0x83DE0309, 0x83DE030C, 0x83DE0310),
        *(0xA06C0101, 0xA06C0103, 0xA06F0103, 0xC36F0108),
    )
)
_CLASSES: Final = frozenset(
    (
        *(0x0, 0x1, 0x41, 0x3E, 0x40, 0x79, 0x80, 0x2080, 0x83DE, 0x9067, 0x90F1, 0xA06C),
        *(0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F),
        *(0xC5C0, 0xC6C0, 0xC7C0, 0xC9C0, 0xCBC0, 0xCDC0, 0xCEC0),
        *(0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5, 0xC9B5, 0xCAB5),
        *(0xC461, 0xC661, 0xC761),
    )
)


def check_escape(number: int, branch: Branch) -> None:
    """Raises SysError(EINVAL) for one that is not known."""
    known = number in _ESCAPES and (number != _WAIT_OPEN or branch.number >= _WAIT_OPEN_SINCE)
    if not known:
        raise SysError(errno.EINVAL, f"escape {number:#x} is not let through")


def check_command(number: int, address: int, size: int) -> None:
    """Raises RmError(NOT_SUPPORTED), SysError(EINVAL) where only one of address and size is 0."""
    check(number in _COMMANDS, Status.NOT_SUPPORTED, f"command {number:#x} is not let through")
    if bool(address) != bool(size):
        raise SysError(errno.EINVAL, f"command {number:#x}: {size} bytes at {address:#x}")


def check_class(args: Record, branch: Branch) -> None:
    """Raises RmError(INVALID_CLASS), SysError(EINVAL) for parameters of another size."""
    number, size = args["hClass"], args["paramsSize"]
    check(number in _CLASSES, Status.INVALID_CLASS, f"class {number:#x} is not let through")
    params = RULES[number].params
    if params is None or not args["pAllocParms"]:
        return
    wanted = branch.layout(params).size
    if size not in (0, wanted):
        raise SysError(errno.EINVAL, f"class {number:#x}: {size} bytes of parameters, not {wanted}")
