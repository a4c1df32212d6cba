"""When commands ran, on the clock of the host: queues write the device's before and after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from gpu.core.clocks import ClockMap, HostClock, bracketed
from gpu.core.errors import InvalidValue
from gpu.hcq import commands
from gpu.hcq.allocator import Stamps
from gpu.hcq.channel import Channel, Point
from gpu.hcq.commands import Command, Timestamp
from gpu.hcq.counting import Counting
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import Memory, MemoryKind
from gpu.hcq.signal import Signal

_EVERY_NS: Final = 1_000_000
"""After how long a device's clock is compared with the host's again, when something is submitted:
often, since reading it is cheap."""
_DONE: Final = 1


class Record(NamedTuple):
    """Commands that ran: name, queue, and when they began and ended on the host's clock.

    Attributes:
        seconds: how long they took by the device's own clock.
        error_ns: how far off the times of the host may be.
        key: what `Profiler.stamps` was given.
        counts: of performance counters, by name.
    """

    name: str
    queue: str
    start_ns: int
    end_ns: int
    seconds: float = 0.0
    error_ns: int = 0
    key: object = None
    counts: Mapping[str, int] = MappingProxyType({})


class _Running(NamedTuple):
    """Commands between two signals, of which the last is set when they are done."""

    name: str
    queue: str
    start: Signal
    end: Signal
    key: object
    counts: Memory | None


class Profiler:
    """Submits commands in order between two timestamps each, and tells when they ran.

    Threads may share it.
    """

    def __init__(
        self,
        device: HCQDevice,
        host_ns: HostClock = time.perf_counter_ns,
        counting: Counting | None = None,
    ):
        """With ``counting`` what `submit` takes is counted too, outside of the timestamps."""
        self._device = device
        self._counting = counting
        port = device.port
        read = partial(bracketed, port.clock, host_ns)
        self.clocks = ClockMap(read, port.clock_hz, host_ns, _EVERY_NS)
        self._running: list[_Running] = []
        self._lock = threading.Lock()

    def submit(
        self, name: str, channel: Channel, commands: Iterable[Command], key: object = None
    ) -> Point:
        """`HCQDevice.submit_in_order`, noted under a name."""
        stamps = self._stamps(name, channel, key, self._counting)
        return self._device.submit_in_order(channel, stamps.around(*commands))

    def stamps(self, name: str, channel: Channel, key: object = None) -> Stamps:
        """What times commands that are submitted with it on ``channel``; noted under a name.

        What comes to nothing is forgotten by `collect`.
        """
        return self._stamps(name, channel, key, None)

    def _stamps(
        self, name: str, channel: Channel, key: object, counting: Counting | None
    ) -> Stamps:
        device = self._device
        start, end = device.signal(), device.signal()
        memory, counted = None, Stamps()
        if counting is not None:
            memory = device.allocate(counting.size, MemoryKind.SYSTEM)
            counted = counting.around(memory.address)
        self.clocks.refresh()
        with self._lock:
            self._running.append(_Running(name, channel.name, start, end, key, memory))
        return Stamps(
            (*counted.before, Timestamp(start)),
            (Timestamp(end), *counted.after, commands.Signal(end, _DONE)),
        )

    @property
    def pending(self) -> int:
        """How many were submitted and not collected."""
        return len(self._running)

    def collect(self, wait: bool = True) -> list[Record]:
        """What was submitted since the last time and is done, in order; with ``wait``, all of it.

        Raises `InvalidValue` where a command ended before it began: the device's clock is wrong;
        and what `HCQDevice.synchronize` raises, after which nothing is left to be collected.
        """
        if not wait:
            return self._collect(done=False)
        try:
            self._device.synchronize()
        except BaseException:
            with self._lock:
                self._running.clear()
            raise
        return self._collect(done=True)

    def _collect(self, done: bool) -> list[Record]:
        """Records of what has ended; of the rest nothing runs any more if all is ``done``."""
        ended: list[_Running] = []
        left: list[_Running] = []
        with self._lock:
            for each in self._running:
                (ended if each.end.value == _DONE else left).append(each)
            self._running = [] if done else left
        if ended:
            self.clocks.compare()
        records = [self._record(each) for each in ended]
        for each in (*ended, *(left if done else ())):
            self._device.release_signal(each.start)
            self._device.release_signal(each.end)
            if each.counts is not None:
                self._device.release(each.counts)
        return records

    def _record(self, ended: _Running) -> Record:
        first, last = ended.start.timestamp, ended.end.timestamp
        if first > last:
            raise InvalidValue(f"{ended.name} began at tick {first} and ended before, at {last}")
        clocks, counts = self.clocks, {}
        if self._counting is not None and ended.counts is not None:
            window = ended.counts.window
            assert window is not None, "the host reaches its own memory"
            counts = self._counting.counts(window.load(0, self._counting.size))
        return Record(
            *(ended.name, ended.queue, clocks.host_ns(first), clocks.host_ns(last)),
            *((last - first) / clocks.hz, clocks.error_ns(last), ended.key, counts),
        )
