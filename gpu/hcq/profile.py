"""When commands ran, on the clock of the host.

A device's clock is compared with the host's by reading it between two host readings; what lies
between those is the uncertainty. Clocks drift: they are compared again each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.core.errors import InvalidValue
from gpu.hcq.channel import Channel, Point
from gpu.hcq.commands import Command, Timestamp
from gpu.hcq.device import HCQDevice
from gpu.hcq.ports import DevicePort
from gpu.hcq.signal import Signal

_TRIES: Final = 8
_STALE_NS: Final = 1_000_000_000


class ClockPair(NamedTuple):
    """The device's ticks at a time of the host, which is at most ``error_ns`` off."""

    host_ns: int
    ticks: int
    error_ns: int


class ClockMap:
    """Turns ticks of a device into nanoseconds of the host's clock."""

    def __init__(self, port: DevicePort, host_ns: Callable[[], int] = time.perf_counter_ns):
        self._port = port
        self._host_ns = host_ns
        self._pair = self._sample()

    def _sample(self) -> ClockPair:
        """The tightest of some comparisons."""
        pairs = []
        for _ in range(_TRIES):
            before = self._host_ns()
            ticks = self._port.clock()
            after = self._host_ns()
            pairs.append(ClockPair((before + after) // 2, ticks, (after - before + 1) // 2))
        return min(pairs, key=lambda pair: pair.error_ns)

    def refresh(self) -> ClockPair:
        """Compare again if the last time was more than a second ago; what is in force."""
        if self._host_ns() - self._pair.host_ns > _STALE_NS:
            self._pair = self._sample()
        return self._pair

    def host_ns(self, ticks: int) -> int:
        """When the device's clock had ``ticks``, in nanoseconds of the host's."""
        pair = self._pair
        return pair.host_ns + round((ticks - pair.ticks) * 1e9 / self._port.clock_hz)


@dataclass(frozen=True, slots=True)
class Record:
    """A command that ran: name, queue, and when it began and ended on the host's clock."""

    name: str
    queue: str
    start_ns: int
    end_ns: int


class Profiler:
    """Submits commands in order between two timestamps each, and tells when they ran."""

    def __init__(self, device: HCQDevice, host_ns: Callable[[], int] = time.perf_counter_ns):
        self._device = device
        self._clocks = ClockMap(device.port, host_ns)
        self._running: list[tuple[str, Point, Signal, Signal]] = []

    def submit(self, name: str, channel: Channel, commands: Iterable[Command]) -> Point:
        """`HCQDevice.submit_in_order`, noted under a name."""
        start, end = self._device.signal(), self._device.signal()
        self._clocks.refresh()
        whole = [Timestamp(start), *commands, Timestamp(end)]
        point = self._device.submit_in_order(channel, whole)
        self._running.append((name, point, start, end))
        return point

    def collect(self) -> list[Record]:
        """Wait for all that was submitted since the last time, and tell about it in order.

        Raises `InvalidValue` where a command ended before it began: the device's clock is wrong.
        """
        records = []
        running, self._running = self._running, []
        for name, point, start, end in running:
            self._device.wait(point)
            first, last = start.timestamp, end.timestamp
            if first > last:
                raise InvalidValue(f"{name} began at tick {first} and ended before, at {last}")
            begin, stop = self._clocks.host_ns(first), self._clocks.host_ns(last)
            records.append(Record(name, point.channel.name, begin, stop))
            self._device.release_signal(start)
            self._device.release_signal(end)
        return records
