"""Buffers: all of an allocation, or a part of one."""

from __future__ import annotations

from gpu.core.arguments import integer
from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.core.window import Window
from gpu.hcq.allocation import Allocation
from gpu.hcq.owner import Owner
from gpu.hcq.peers import end, lend
from gpu.hcq.symbol import GpuVA


class HCQBuffer:
    """``size`` bytes at a GPU ``address``: all of an allocation, or a part."""

    __slots__ = ("address", "allocation", "size")

    def __init__(self, allocation: Allocation, offset: int, size: int):
        self.allocation = allocation
        self.address = GpuVA(allocation.memory.address + offset)
        self.size = size

    @property
    def device(self) -> Owner:
        """The owner. Raises `InvalidValue` once freed."""
        if self.allocation.device is None:
            raise InvalidValue(f"{self!r} has been freed")
        return self.allocation.device

    @property
    def window(self) -> Window | None:
        """The bytes as the host sees them, or None. Errors as of `device`, `DeviceLost`."""
        self.device.check_usable()
        memory = self.allocation.memory
        if memory.window is None:
            return None
        return memory.window.sub(self.address - memory.address, self.size)

    def view(self, offset: int, size: int) -> HCQBuffer:
        """A part of it, which shares its life. `InvalidIndex` outside of it, `InvalidType`."""
        offset, size = integer(offset, "the offset of a view"), integer(size, "the size of a view")
        if offset < 0 or size <= 0 or offset + size > self.size:
            raise InvalidIndex(f"{size} bytes at {offset} of {self!r}: they must lie inside")
        start = self.address - self.allocation.memory.address
        return HCQBuffer(self.allocation, start + offset, size)

    def free(self) -> None:
        """Free the whole allocation."""
        self.allocation.free()

    def check_reachable(self, device: Owner) -> None:
        """Raise `InvalidValue` where ``device`` cannot use it, with what to do."""
        if self.device is not device and not self.allocation.peers.get(device):
            raise InvalidValue(
                f"{self!r} is memory of {self.device.name}, not mapped into {device.name}:"
                " call map_to() first"
            )

    def map_to(self, device: Owner) -> None:
        """Let another device use it; counted. Raises `Unsupported` where it has no way to."""
        if device is not self.device:
            lend(self.device, self.allocation.memory, device)

    def unmap_from(self, device: Owner) -> None:
        """End what `map_to` began; the last one waits until both devices are done with it."""
        owner, memory = self.device, self.allocation.memory
        if device is owner:
            return
        if not self.allocation.peers.get(device):
            raise Unsupported(f"{self!r} is not mapped into {device.name}")
        owner.lent[memory][device] -= 1
        if not self.allocation.peers[device]:
            owner.synchronize()
            device.synchronize()
            with device.lock:
                end(owner, memory, device)

    def __repr__(self) -> str:
        kind = self.allocation.memory.kind.value
        return f"HCQBuffer({self.size} bytes at {self.address:#x}, {kind})"
