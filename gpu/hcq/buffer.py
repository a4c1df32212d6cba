"""Memory in use: allocations with one owner, and buffers, which are views of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpu.core.arguments import integer
from gpu.core.errors import InvalidIndex, InvalidValue, Unsupported
from gpu.core.window import Window
from gpu.hcq.ports import Memory
from gpu.hcq.symbol import GpuVA

if TYPE_CHECKING:
    from gpu.hcq.device import HCQDevice


class Allocation:
    """Memory of a device until it is freed, or until nobody has it any more.

    Freeing parks it: the device takes it back when all that was submitted by then is done. A bound
    graph pins what it uses; pinned memory is parked when the last pin is gone.
    """

    __slots__ = ("__weakref__", "_home", "device", "memory", "peers", "pins", "reusable")

    def __init__(self, memory: Memory, device: HCQDevice, *, reusable: bool = True):
        self.device: HCQDevice | None = None
        """The owner, None once freed."""
        self.memory = memory
        self.peers: dict[HCQDevice, int] = {}
        """Devices that have mapped it too, and how often."""
        self.pins = 0
        self.reusable = reusable
        self._home = device
        self.device = device  # last: the finalizer looks at it first

    def free(self) -> None:
        """Hand it back; buffers of it cannot be used from here on. Again does nothing."""
        if self.device is not None:
            self.device = None
            self._home.park(self)

    def __del__(self) -> None:
        # May run anywhere, our own lock held: parking only appends to a deque.
        if getattr(self, "device", None) is not None:
            self.device = None
            self._home.park(self)


class Pins:
    """Keeps allocations from being reused for as long as something bound refers to them."""

    def __init__(self, device: HCQDevice, buffers: Iterable[HCQBuffer]):
        self._device = device
        self._closed = False
        self._allocations = list(dict.fromkeys(buffer.allocation for buffer in buffers))
        with device.lock:
            for allocation in self._allocations:
                allocation.pins += 1

    def close(self) -> None:
        """Let go of them, at the next submission. Again does nothing."""
        if not self._closed:
            self._closed = True
            self._device.park(self)

    def drop(self) -> None:
        """Really let go; under the lock."""
        for allocation in self._allocations:
            allocation.pins -= 1
            if not allocation.pins and allocation.device is None:
                self._device.park(allocation)

    def __del__(self) -> None:
        self.close()  # only appends to a deque


class HCQBuffer:
    """``size`` bytes at a GPU ``address``: all of an allocation, or a part."""

    __slots__ = ("address", "allocation", "size")

    def __init__(self, allocation: Allocation, offset: int, size: int):
        self.allocation = allocation
        self.address = GpuVA(allocation.memory.address + offset)
        self.size = size

    @property
    def device(self) -> HCQDevice:
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

    def check_reachable(self, device: HCQDevice) -> None:
        """Raise `InvalidValue` where ``device`` cannot use it, with what to do."""
        if self.device is not device and device not in self.allocation.peers:
            raise InvalidValue(
                f"{self!r} is memory of {self.device.name}, not mapped into {device.name}:"
                " call map_to() first"
            )

    def map_to(self, device: HCQDevice) -> None:
        """Let another device use it; counted. Raises `Unsupported` where it has no way to."""
        owner, peers = self.device, self.allocation.peers
        if device is owner:
            return
        if not peers.get(device):
            with device.lock:
                device.port.memory.map_peer(self.allocation.memory, owner.port.memory)
        peers[device] = peers.get(device, 0) + 1

    def unmap_from(self, device: HCQDevice) -> None:
        """End what `map_to` began; the last one waits until both devices are done with it."""
        owner, peers = self.device, self.allocation.peers
        if device is owner:
            return
        if device not in peers:
            raise Unsupported(f"{self!r} is not mapped into {device.name}")
        peers[device] -= 1
        if not peers[device]:
            owner.synchronize()
            device.synchronize()
            del peers[device]
            with device.lock:
                device.port.memory.unmap_peer(self.allocation.memory)

    def __repr__(self) -> str:
        kind = self.allocation.memory.kind.value
        return f"HCQBuffer({self.size} bytes at {self.address:#x}, {kind})"
