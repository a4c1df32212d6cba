"""Memory in use: who owns an allocation, and what keeps it from being used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, TypeVarTuple

from gpu.hcq.channel import Channel, Point, Template
from gpu.hcq.commands import Command
from gpu.hcq.link import Linked
from gpu.hcq.ports import DevicePort, Memory, MemoryKind
from gpu.hcq.signal import Signal

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Owner(Protocol):
    """A device as its buffers, programs and queues see it: `gpu.hcq.device.HCQDevice`.

    What the methods do, and which need the lock, is said there.
    """

    name: str
    lock: threading.Lock
    frontier: tuple[tuple[Channel, int], tuple[Channel, int]]

    @property
    def port(self) -> DevicePort:
        """What the vendor provides."""

    def channels(self) -> list[Channel]:
        """All queues that are open."""

    def channel(self, kind: str, index: int = 0) -> Channel:
        """A queue."""

    def signal(self, value: int = 0) -> Signal:
        """A signal of one's own."""

    def release_signal(self, signal: Signal) -> None:
        """Take a signal back."""

    def template(self, channel: Channel, commands: Iterable[Command], after: bool) -> Template:
        """Commands as `Channel.send` takes them."""

    def link(
        self, channel: Channel, commands: Iterable[Command], *, after: bool, bound: bool = False
    ) -> Linked:
        """Commands as a submission."""

    def submit(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """Submit, waiting for nothing but what the commands say."""

    def submit_in_order(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """Submit behind the last submission in order."""

    def send_in_order(self, channel: Channel, commands: Iterable[Command]) -> Point:
        """`submit_in_order` under the lock."""

    def exclusively(self, action: Callable[[*Args], T], *args: *Args) -> T:
        """Run what submits under the lock."""

    def wait(self, point: Point, timeout: float | None = None) -> None:
        """Wait for a submission."""

    def wait_in_order(self, timeout: float | None = None) -> None:
        """Wait for the last submission in order."""

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait for all that was submitted."""

    def check_usable(self) -> None:
        """Raise `DeviceLost` where it is."""

    def allocate(self, size: int, kind: MemoryKind) -> Memory:
        """Memory from the port; under the lock."""

    def release(self, memory: Memory) -> None:
        """Give memory back to the port; under the lock."""

    def adopt(self, memory: Memory) -> None:
        """Have memory released like that of `allocate`; under the lock."""

    def park(self, item: Allocation | Pins) -> None:
        """Take memory back at the next submission."""


class Allocation:
    """Memory of a device until it is freed, or until nobody has it any more.

    Freeing parks it: the device takes it back when all that was submitted by then is done. A bound
    graph pins what it uses; pinned memory is parked when the last pin is gone.
    """

    __slots__ = ("__weakref__", "_home", "device", "memory", "peers", "pins", "reusable")

    def __init__(self, memory: Memory, device: Owner, *, reusable: bool = True):
        self.device: Owner | None = None
        """The owner, None once freed."""
        self.memory = memory
        self.peers: dict[Owner, int] = {}
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
