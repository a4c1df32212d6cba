"""The CPU's caches in front of memory that it maps write-back, and that the GPU does not snoop.

Three copies of such memory are kept: what the GPU has, what the CPU sees, and what both had at the
last call that made them agree. A byte that differs between the last two was written by the CPU and
is dirty; one that differs between the first and the last was written by the GPU, and the CPU does
not see it before its caches are invalidated. The kernel cleans, invalidates, or both by range, in
whole pages (kgsl_sharedmem.c, `kgsl_cache_range_op`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from gpu.core.bits import align_up
from gpu.sim.physical import Extent, Pool
from gpu.sim.record import DebugChannel
from gpu.sim.translate import PAGE_SIZE

_LINE: Final = 64  # bytes of a line of the CPU's caches
_CHUNK: Final = 1 << 20
Bytes = npt.NDArray[np.uint8]


class View(Protocol):
    """Memory as the CPU sees it. Offsets are in bytes."""

    def load(self, offset: int, size: int) -> bytes:
        """Reads bytes."""
        ...

    def store(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Writes bytes."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Cached:
    """Memory that the CPU's caches hold.

    Attributes:
        name: for records.
        memory, synced: pools with what the GPU has, and what both had when they last agreed.
        view, start: where the CPU sees it, and at which offset there.
        extent: where it lies in both pools.
    """

    name: str
    memory: Pool
    synced: Pool
    view: View
    start: int
    extent: Extent


class CpuCaches:
    """What the calls that clean and invalidate do, and what the GPU finds that they were not."""

    def __init__(self, is_checked: bool, debug: DebugChannel):
        """Where it is checked, the GPU gets what is dirty, with a record; else the old bytes."""
        self._is_checked = is_checked
        self._debug = debug

    def begin(self, cached: Cached) -> None:
        """Makes all copies of new memory agree with what the CPU sees."""
        for offset, size in _chunks(0, cached.extent.size):
            data = cached.view.load(cached.start + offset, size)
            cached.memory.store(cached.extent.offset + offset, data)
            cached.synced.store(cached.extent.offset + offset, data)

    def clean(self, cached: Cached, offset: int, size: int) -> None:
        """Writes dirty lines back."""
        for at, count in _pages(cached, offset, size):
            self._write_back(cached, at, count)

    def invalidate(self, cached: Cached, offset: int, size: int) -> None:
        """Forgets what is held, so that the CPU sees memory again."""
        for at, count in _pages(cached, offset, size):
            if dirty := _dirty(cached, at, count):
                self._debug.violation(
                    f"an invalidate of {cached.name} loses what the CPU wrote at offset"
                    f" {dirty[0][0]:#x}: clean it first, or flush"
                )
            data = cached.memory.load(cached.extent.offset + at, count)
            cached.view.store(cached.start + at, data)
            cached.synced.store(cached.extent.offset + at, data)

    def read_by_gpu(self, cached: Cached, offset: int, size: int) -> bool:
        """The GPU reads a range: nothing of it may be dirty. Whether something was written back."""
        if not self._is_checked:
            return False
        found = False
        for at, count in _chunks(offset, size):
            for first, data in _dirty(cached, at, count):
                found = True
                self._debug.violation(
                    f"the CPU's caches hold newer data of {cached.name} at offset {first:#x}:"
                    " GPUOBJ_SYNC must clean them before the GPU reads"
                )
                for pool in (cached.memory, cached.synced):
                    pool.store(cached.extent.offset + first, data)
        return found

    def _write_back(self, cached: Cached, offset: int, size: int) -> None:
        """Dirty bytes go to memory; a line that the GPU has written since is a mistake."""
        runs = _dirty(cached, offset, size)
        if not runs:
            return
        base = cached.extent.offset
        agreed = _array(cached.synced, base + offset, size)
        memory = _array(cached.memory, base + offset, size)
        by_gpu = set((np.flatnonzero(agreed != memory) // _LINE).tolist())
        for first, data in runs:
            lines = range((first - offset) // _LINE, (first - offset + len(data) - 1) // _LINE + 1)
            if by_gpu.intersection(lines):
                self._debug.violation(
                    f"cleaning {cached.name} at offset {first:#x}: the GPU has written the same"
                    " line, which the CPU's copy overwrites"
                )
            for pool in (cached.memory, cached.synced):
                pool.store(base + first, data)


def _pages(cached: Cached, offset: int, size: int) -> list[tuple[int, int]]:
    """Chunks of a range of whole pages."""
    first = offset - offset % PAGE_SIZE
    end = min(align_up(offset + size, PAGE_SIZE), cached.extent.size)
    return _chunks(first, end - first)


def _chunks(offset: int, size: int) -> list[tuple[int, int]]:
    end = offset + size
    return [(at, min(_CHUNK, end - at)) for at in range(offset, end, _CHUNK)]


def _array(view: View, offset: int, size: int) -> Bytes:
    return np.frombuffer(view.load(offset, size), np.uint8)


def _dirty(cached: Cached, offset: int, size: int) -> list[tuple[int, bytes]]:
    """Runs of bytes that the CPU has written: offset and data."""
    seen = cached.view.load(cached.start + offset, size)
    agreed = cached.synced.load(cached.extent.offset + offset, size)
    if seen == agreed:
        return []
    differing = np.flatnonzero(np.frombuffer(seen, np.uint8) != np.frombuffer(agreed, np.uint8))
    breaks = np.flatnonzero(np.diff(differing) != 1) + 1
    runs = ((int(run[0]), int(run[-1]) + 1) for run in np.split(differing, breaks))
    return [(offset + first, seen[first:last]) for first, last in runs]
