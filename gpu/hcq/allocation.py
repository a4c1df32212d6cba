"""Memory in use: who owns an allocation, and what keeps it from being used again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu.hcq.owner import Owner
from gpu.hcq.ports import Memory


class Allocation:
    """Memory of a device until it is freed, or until nobody has it any more.

    Freeing parks it: the device takes it back when all that was submitted by then is done. A bound
    graph pins what it uses; pinned memory is parked when the last pin is gone.
    """

    __slots__ = ("__weakref__", "_home", "device", "memory", "pins", "reusable")

    def __init__(self, memory: Memory, device: Owner, *, reusable: bool = True):
        self.device: Owner | None = None
        """The owner, None once freed."""
        self.memory = memory
        self.pins = 0
        self.reusable = reusable
        self._home = device
        self.device = device  # last: the finalizer looks at it first

    @property
    def peers(self) -> Mapping[Owner, int]:
        """Devices that have it mapped too, and how often they were lent it."""
        return self._home.lent.get(self.memory, {})

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

    def __init__(self, device: Owner, allocations: Iterable[Allocation]):
        self._device = device
        self._closed = False
        self._allocations = list(dict.fromkeys(allocations))
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
