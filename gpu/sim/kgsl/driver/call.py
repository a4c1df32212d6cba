"""A call of a process, as those that carry it out see it."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpu.sim.kernel import CallerMemory, SysError
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.kgsl.driver.objects import KgslProcess
from gpu.sim.process import SimProcess

ArgsT_co = TypeVar("ArgsT_co", bound=ctypes.Structure, covariant=True)
StructT = TypeVar("StructT", bound=ctypes.Structure)


@dataclass(frozen=True, slots=True)
class Call(Generic[ArgsT_co]):
    """A call.

    Attributes:
        device: of whom it is made.
        owner: who opened the file; `process` makes the call, and may be a child of it.
        file: the open file.
        args: its structure.
    """

    device: Device
    owner: KgslProcess
    process: SimProcess
    file: object
    args: ArgsT_co

    @property
    def user(self) -> CallerMemory:
        """The memory of the process that makes it."""
        return self.process.user

    def structs(self, address: int, size: int, count: int, kind: type[StructT]) -> list[StructT]:
        """Structures in a list of the caller's, each of `size` bytes (`copy_struct_from_user`).

        Raises SysError(EFAULT) where they cannot be read, or have more than is known.
        """
        known, found = ctypes.sizeof(kind), []
        for i in range(count):
            data = self.user.read(address + i * known, size)
            if any(data[known:]):
                raise SysError(errno.EFAULT, f"{size} bytes, of which {known} are known")
            found.append(kind.from_buffer_copy(data[:known].ljust(known, b"\0")))
        return found

    def list_of(self, address: int, size: int, count: int, kind: type[StructT]) -> list[StructT]:
        """A list that a command has; none where all is 0 (`_verify_input_list`).

        Raises SysError(EINVAL).
        """
        if not (address or size or count):
            return []
        if not (address and size and count):
            raise SysError(errno.EINVAL, f"a list of {count} times {size} bytes at {address:#x}")
        return self.structs(address, size, count, kind)
