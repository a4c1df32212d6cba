"""Memory that is used again: freed buffers by size and kind, and staging for copies to devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from gpu.core.arguments import host_bytes, integer
from gpu.core.bits import align_up, round_up_power_of_two
from gpu.core.errors import InvalidType, InvalidValue, OutOfMemory
from gpu.core.interrupts import put_off
from gpu.core.ring import FencedRing
from gpu.hcq import peers
from gpu.hcq.allocation import Allocation, Pins
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.channel import Channel, MustWait, Point
from gpu.hcq.checks import buffer_of
from gpu.hcq.commands import Barrier, Command, Copy
from gpu.hcq.owner import Owner
from gpu.hcq.ports import Memory, MemoryKind

STAGING: Final = 16 << 20
_SMALLEST: Final = 256


class CopyPlaces(NamedTuple):
    """Which copy queue, by index, copies to the device, from it, and within it."""

    to_device: int = 0
    from_device: int = -1
    within: int = 0


class Stamps(NamedTuple):
    """What is submitted before and after a copy that is timed."""

    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()

    def around(self, *commands: Command) -> list[Command]:
        """Commands with it."""
        return [*self.before, *commands, *self.after]


_UNTIMED: Final = Stamps()


class _Freed(NamedTuple):
    """Memory that may still be used, up to a value of each queue that could know it."""

    memory: Memory
    until: tuple[tuple[Channel, int], ...]

    def blocked(self) -> tuple[Channel, int] | None:
        """A submission that has to be waited for, or None."""
        for channel, value in self.until:
            if not channel.timeline.passed(value):
                return channel, value
        return None


class HCQAllocator:
    """Buffers of a device, and copies between them and the host.

    What is freed is kept for buffers of the same size and kind, the oldest first, and goes back to
    the system only when it must. Nothing is used again before all that was submitted when it was
    freed is done. Copies are submitted in order, on copy queues where there are any.

    Attributes:
        places: which copy queue copies what.
        stamps: asked for each copy, by queue and bytes; who profiles the device sets it.
    """

    def __init__(self, device: Owner, staging: int):
        """``staging`` is the bytes of the ring that copies from the host go through."""
        self.places = CopyPlaces()
        self.stamps: Callable[[Channel, int], Stamps] = lambda channel, nbytes: _UNTIMED
        self._device = device
        self._freed: dict[tuple[int, MemoryKind], deque[_Freed]] = {}
        self._ending: deque[_Freed] = deque()  # what is not used again
        self._staging_size = staging
        self._staging: dict[Channel, tuple[Memory, FencedRing]] = {}

    # Memory

    def alloc(self, size: int, kind: MemoryKind = MemoryKind.VRAM) -> HCQBuffer:
        """Memory of at least ``size`` bytes, with stale contents.

        Raises `InvalidType` for what is no size or kind, `InvalidValue` for a size below 1, and
        `OutOfMemory` when not even all that was freed makes room.
        """
        size = integer(size, "the size of an allocation")
        if size < 1:
            raise InvalidValue(f"allocation of {size} bytes: give at least 1")
        if not isinstance(kind, MemoryKind):
            raise InvalidType(f"a kind of memory is one of MemoryKind, not {kind!r}")
        whole = _rounded(size)
        return self._device.exclusively(self._buffer, whole, kind, size)

    def map_host(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> HCQBuffer:
        """The memory of an array as a buffer, without a copy: keep the array alive as long.

        Raises `InvalidValue` for an array that is not contiguous, `Unsupported` where the device
        cannot reach host memory in place.
        """
        if not isinstance(array, np.ndarray):
            raise InvalidType(f"mapping a {type(array).__name__}: give a numpy array")
        if not array.flags.c_contiguous or not array.nbytes:
            raise InvalidValue("mapping an array that is empty or not contiguous")
        place = array.ctypes.data
        return self.adopt(self._device.port.memory.map_host, place, array.nbytes)

    def adopt(self, take: Callable[[int, int], Memory], address: int, size: int) -> HCQBuffer:
        """A buffer over memory of someone else, which is not used again when it is freed.

        ``take(address, size)`` has the port map it, under the lock; errors are its.
        """

        def adopted() -> Memory:
            memory = take(address, size)
            self._device.adopt(memory)
            return memory

        memory = self._device.exclusively(adopted)
        return HCQBuffer(Allocation(memory, self._device, reusable=False), 0, size)

    def _buffer(self, whole: int, kind: MemoryKind, size: int) -> HCQBuffer:
        """A buffer of ``size`` bytes in memory of ``whole``; under the lock.

        Memory that was taken is always somebody's, who gives it back.
        """
        with put_off():
            return HCQBuffer(Allocation(self._take(whole, kind), self._device), 0, size)

    def _take(self, size: int, kind: MemoryKind) -> Memory:
        """Freed memory that nothing uses any more, else new memory; under the lock."""
        freed = self._freed.get((size, kind))
        if freed and freed[0].blocked() is None:
            return freed.popleft().memory
        try:
            return self._device.allocate(size, kind)
        except OutOfMemory:
            if freed and (blocked := freed[0].blocked()):  # it fits: worth waiting for
                raise MustWait(*blocked) from None
            self._give_back()
        return self._device.allocate(size, kind)

    def cached(self) -> int:
        """Bytes of freed memory that were not given back to the system.

        What was freed since the last submission is not among them yet.
        """
        with self._device.lock:
            groups = (*self._freed.values(), self._ending)
            return sum(freed.memory.size for group in groups for freed in group)

    def free_cache(self) -> None:
        """Give all that was freed back to the system, once nothing uses it any more."""
        self._device.exclusively(self._give_back)

    def _give_back(self) -> None:
        """Release all freed memory; raises `MustWait` until it can. Under the lock."""
        for freed in (*self._freed.values(), self._ending):
            while freed:
                if blocked := freed[0].blocked():
                    raise MustWait(*blocked)
                with put_off():
                    self._end(freed.popleft())

    def collect(self, parked: deque[Allocation | Pins]) -> None:
        """Take back what was freed since the last submission; under the lock."""
        with put_off():
            while parked:
                item = parked.popleft()
                if isinstance(item, Pins):
                    item.drop()
                elif not item.pins:
                    self._retire(item)
            while self._ending and self._ending[0].blocked() is None:
                self._end(self._ending.popleft())

    def _retire(self, allocation: Allocation) -> None:
        memory, users = allocation.memory, self._device.lent.get(allocation.memory, {})
        devices = (self._device, *users)
        until = tuple((c, c.timeline.submitted) for device in devices for c in device.channels())
        users.update(dict.fromkeys(users, 0))
        if allocation.reusable:
            kept = self._freed.setdefault((memory.size, memory.kind), deque())
            kept.append(_Freed(memory, until))
        else:
            self._ending.append(_Freed(memory, until))

    def _end(self, freed: _Freed) -> None:
        peers.end(self._device, freed.memory)
        self._device.release(freed.memory)

    # Copies

    def copy(self, dst: HCQBuffer, src: HCQBuffer) -> None:
        """Copy as many bytes as both have, in order; both are reachable by this device.

        Where one is another device's, it is behind all that was submitted in order there before,
        and ahead of what is submitted afterwards and touches the same memory.

        Raises `InvalidValue` for different sizes and for memory that is not mapped here.
        """
        _check_sizes(dst, buffer_of(src, "the source of a copy").size)
        for buffer in (dst, src):
            buffer.check_reachable(self._device)
        channel = self._channel(self.places.within)
        copy = self.stamps(channel, src.size).around(
            Barrier(), Copy(dst.address, src.address, src.size)
        )
        if dst.device is src.device is self._device:
            self._device.submit_in_order(channel, copy)
            return
        sides = [
            (src.device, src.allocation.memory, False),
            (dst.device, dst.allocation.memory, True),
        ]
        peers.copy(self._device, channel, copy, sides)

    def copy_in(self, dst: HCQBuffer, data: bytes | bytearray | memoryview) -> None:
        """Copy from the host; ``data`` may change as soon as this returns.

        Goes through the staging ring, however large it is. Raises `InvalidValue` for a size that
        is not the buffer's.
        """
        source = host_bytes(data, "what is copied")
        _check_sizes(dst, source.nbytes)
        dst.check_reachable(self._device)
        if dst.allocation.memory.kind is MemoryKind.SYSTEM:
            self._device.wait_in_order()
            window = dst.window
            assert window is not None
            window.store(0, source)
            return
        self._carry_in(self._channel(self.places.to_device), dst.address, source)

    def _carry_in(self, channel: Channel, address: int, source: memoryview) -> None:
        """Has bytes of the host copied to an address; they are as good as gone when it returns."""
        step = self._staging_size // 4
        for start in range(0, source.nbytes, step):
            chunk = source[start : start + step]
            place, stamps = address + start, self.stamps(channel, chunk.nbytes)
            self._device.exclusively(self._stage, channel, chunk, place, stamps)

    def _stage(self, channel: Channel, chunk: memoryview, dst: int, stamps: Stamps) -> None:
        """Put bytes into the staging ring and submit their copy; under the lock."""
        memory, ring = self._staging_of(channel)
        offset = ring.reserve(chunk.nbytes)
        try:
            assert memory.window is not None
            memory.window.store(offset, chunk)
            copy = Copy(dst, memory.address + offset, chunk.nbytes)
            self._device.send_in_order(channel, stamps.around(Barrier(), copy))
        finally:
            ring.fence(channel.timeline.submitted)

    def _staging_of(self, channel: Channel) -> tuple[Memory, FencedRing]:
        if channel not in self._staging:
            memory = self._device.allocate(self._staging_size, MemoryKind.SYSTEM)
            ring = FencedRing(self._staging_size, channel.must_pass, align=64)
            self._staging[channel] = (memory, ring)
        return self._staging[channel]

    def copy_out(self, src: HCQBuffer) -> bytes:
        """The contents once all that was submitted in order before is done."""
        buffer_of(src, "the source of a copy").check_reachable(self._device)
        if src.allocation.memory.kind is MemoryKind.SYSTEM:
            self._device.wait_in_order()
            window = src.window
            assert window is not None
            return window.load(0, src.size)
        return self._carry_out(self._channel(self.places.from_device), src)

    def _carry_out(self, channel: Channel, src: HCQBuffer) -> bytes:
        """The contents, behind all that was submitted in order before."""
        step = min(self._staging_size // 4, src.size)
        data = bytearray(src.size)
        # Two at a time: one is copied by the device while the other is read.
        buffers = [self.alloc(step, MemoryKind.SYSTEM) for _ in range(min(2, -(-src.size // step)))]
        under_way: deque[tuple[Point, HCQBuffer, slice]] = deque()
        for number, start in enumerate(range(0, src.size, step)):
            if len(under_way) == len(buffers):
                self._finish(data, *under_way.popleft())
            part = slice(start, min(start + step, src.size))
            buffer = buffers[number % 2]
            size = part.stop - start
            copy = Copy(buffer.address, src.address + start, size)
            timed = self.stamps(channel, size).around(copy)
            point = self._device.submit_in_order(channel, timed)
            under_way.append((point, buffer, part))
        while under_way:
            self._finish(data, *under_way.popleft())
        for buffer in buffers:
            buffer.free()
        return bytes(data)

    def _finish(self, data: bytearray, point: Point, buffer: HCQBuffer, part: slice) -> None:
        self._device.wait(point)
        window = buffer.window
        assert window is not None
        data[part] = window.load(0, part.stop - part.start)

    def _channel(self, index: int) -> Channel:
        """A copy queue, or the first compute queue where there is none."""
        count = self._device.port.queue_counts.get("copy", 0)
        return (
            self._device.channel("copy", index % count)
            if count
            else self._device.channel("compute")
        )


def _rounded(size: int) -> int:
    """Sizes in steps of an eighth of the next power of two, so that few differ a little."""
    return align_up(size, max(_SMALLEST, round_up_power_of_two(size) // 16))


def _check_sizes(dst: HCQBuffer, size: int) -> None:
    if buffer_of(dst, "the target of a copy").size != size:
        raise InvalidValue(f"copy of {size} bytes into {dst!r}: sizes must be equal, take a view")
