"""How much memory tensors have on each device, and the lines of the user's code that hold it.

Allocators count what they hand out. Who holds it is found when somebody asks: the lines that made
nodes are known (`gpu/runtime/origins.py`), and those of nodes in memory are lines that hold it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol
from weakref import WeakSet

from gpu.core.callsite import CallSite
from gpu.core.errors import MemoryLeak, OutOfMemory
from gpu.runtime.device import Device
from gpu.runtime.origins import known_origins, line_of

# Lines named in an error.
_MOST_LINES: Final = 5
# The part of what was asked for below which a line's memory is not worth naming there.
_LITTLE: Final = 20


class _Buffer(Protocol):
    """Of a `gpu.runtime.buffer.Buffer` what is asked for here."""

    device: str

    @property
    def nbytes(self) -> int: ...

    @property
    def is_allocated(self) -> bool: ...


class Holder(NamedTuple):
    """Memory of tensors that one line made.

    Attributes:
        line: the line; None for what no tensor holds, as what `jit` keeps for its next call.
        nbytes: bytes that they have together.
        buffers: how many pieces of memory these are.
    """

    line: CallSite | None
    nbytes: int
    buffers: int | None

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.nbytes:,} bytes that no tensor holds, as what `jit` keeps"
        many = "" if self.buffers == 1 else f" in {self.buffers} tensors"
        return f"{self.nbytes:,} bytes{many} made at {self.line}"


class MemoryStats(NamedTuple):
    """Memory of one device, in bytes.

    Attributes:
        live: what is in use now.
        peak: the most that was in use at once, since the start or `reset_peak_memory_stats`.
        reserved: what the device was asked for: `live`, and what was freed and is kept for later.
        holders: who holds what is live, most first.
    """

    live: int
    peak: int
    reserved: int
    holders: tuple[Holder, ...]

    def __str__(self) -> str:
        told = f"{self.live:,} bytes live, {self.peak:,} at most, {self.reserved:,} reserved"
        return "\n  ".join([told, *map(str, self.holders)])


def memory_stats() -> dict[str, MemoryStats]:
    """For each device in use what tensors have there, in bytes, and which lines hold it.

    Memory of others that tensors use in place, as that of a numpy array, is not counted.
    `gpu.Device[name].allocator.free_cache()` gives back what is reserved and not live.

    >>> import gpu
    >>> weights = gpu.Tensor.ones(1000, device="CPU").contiguous().realize()
    >>> gpu.memory_stats()["CPU"].live >= 4000
    True
    """
    stats = {}
    for device in Device.opened():
        allocator = device.allocator
        live = allocator.live
        holders = tuple(_holders(device.device, live))
        stats[device.device] = MemoryStats(live, allocator.peak, live + allocator.cached, holders)
    return stats


def reset_peak_memory_stats() -> None:
    """Counts the peak of each device from what is live now."""
    for device in Device.opened():
        device.allocator.reset_peak()


@contextmanager
def assert_no_leaks() -> Iterator[None]:
    """A block after which no tensor's memory is in use that was not in use before, for tests.

    Raises MemoryLeak with the lines that made what is left. Garbage is collected first. What has
    no line, as what `jit` keeps for its next call, is not looked at: call such functions before.

    >>> import gpu
    >>> with gpu.assert_no_leaks():
    ...     total = (gpu.Tensor([1.0, 2.0]) * 2).sum().item()
    """
    gc.collect()
    before = WeakSet(buffer for buffer, _ in _held())
    yield
    gc.collect()
    left = list(_by_line(lambda buffer: buffer not in before))
    if left:
        raise MemoryLeak("memory is still in use: " + "; ".join(map(str, left[:_MOST_LINES])))


def name_holders(error: OutOfMemory, device: str, nbytes: int) -> None:
    """Adds a note to an error of what holds the memory of a device, where `nbytes` were asked for.

    Lines that hold little beside that are left out.
    """
    live = Device[device].allocator.live
    holders = [h for h in _holders(device, live) if h.nbytes * _LITTLE >= nbytes][:_MOST_LINES]
    if holders:
        error.add_note(f"in use on {device}: " + "\n  and ".join(map(str, holders)))


def _holders(device: str, live: int) -> Iterator[Holder]:
    known = list(_by_line(lambda buffer: buffer.device == device))
    rest = live - sum(holder.nbytes for holder in known)
    if rest > 0:
        known.append(Holder(None, rest, None))
    return iter(sorted(known, key=lambda holder: -holder.nbytes))


def _by_line(is_wanted: Callable[[_Buffer], bool]) -> Iterator[Holder]:
    """What each line holds of the buffers that are wanted, most first."""
    lines: dict[CallSite, list[_Buffer]] = {}
    for buffer, line in _held():
        if is_wanted(buffer):
            lines.setdefault(line, []).append(buffer)
    holders = (Holder(line, sum(b.nbytes for b in own), len(own)) for line, own in lines.items())
    return iter(sorted(holders, key=lambda holder: -holder.nbytes))


def _held() -> Iterator[tuple[_Buffer, CallSite]]:
    """The buffers with memory of their own that nodes have, each once, with the oldest's line."""
    seen: set[int] = set()
    for node, place in known_origins():
        for part in node.src if node.kind == "multi" else (node,):
            if part.kind != "buffer":
                continue
            buffer: _Buffer = part.attr[0]
            # What stands for memory in the body of a loop has none to ask for.
            if not getattr(buffer, "is_allocated", False) or id(buffer) in seen:
                continue
            if (line := line_of(place)) is not None:
                seen.add(id(buffer))
                yield buffer, line
