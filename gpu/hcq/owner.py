"""What a device is to its buffers, programs and queues, and to other devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar, TypeVarTuple

from gpu.hcq.channel import Channel, Point, Template
from gpu.hcq.commands import Command
from gpu.hcq.link import Linked
from gpu.hcq.ports import DevicePort, Memory, MemoryKind
from gpu.hcq.signal import Signal
from gpu.hcq.symbol import Value

T = TypeVar("T")
Args = TypeVarTuple("Args")
Touched = tuple[Value, bool]
"""An address in a buffer, and whether it is written there."""


class Owner(Protocol):
    """A device as its buffers, programs and queues see it: `gpu.hcq.device.HCQDevice`.

    What the methods do, and which need the lock, is said there.
    """

    name: str
    lock: threading.Lock
    frontier: tuple[tuple[Channel, int], tuple[Channel, int]]
    accesses: list[Access]
    lent: dict[Memory, dict[Owner, int]]
    signal_pages: list[Memory]

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

    def settle(self, channel: Channel, touched: Iterable[Touched]) -> None:
        """Have what is submitted in order next wait for `accesses` of what it touches."""

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

    def park(self, item: Any) -> None:
        """Take an `Allocation` or `Pins` back at the next submission."""


class Access(NamedTuple):
    """What a queue of ``user`` does with memory of a device beside the order of that device.

    It is over when the queue has reached ``value``. Without ``memory`` it is signals it waits for.
    """

    memory: Memory | None
    writes: bool
    user: Owner
    channel: Channel
    value: int

    @property
    def reached(self) -> int:
        """``value``, or the last before it where that was never submitted."""
        return min(self.value, self.channel.timeline.submitted)

    @property
    def point(self) -> Point:
        """What its user can wait for."""
        return Point(self.channel, self.reached)

    def conflicts(self, address: Value, writes: bool) -> bool:
        """Whether who touches an address has to wait for it."""
        memory = self.memory
        if memory is None or not isinstance(address, int):
            return False
        return 0 <= address - memory.address < memory.size and (writes or self.writes)
