"""Contexts: what they were asked to be, their timestamps, and what became of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpu.autogen import kgsl
from gpu.sim.kgsl.driver.objects import KgslProcess, MemObject
from gpu.sim.physical import Pool

MEMSTORE: Final = 8 * 4096
_STRIDE: Final = 40  # sizeof(struct kgsl_devmemstore)
_START: Final = kgsl.kgsl_devmemstore.soptimestamp.offset  # type: ignore[attr-defined]
_END: Final = kgsl.kgsl_devmemstore.eoptimestamp.offset  # type: ignore[attr-defined]
MOST_CONTEXTS: Final = MEMSTORE // _STRIDE - 2 - 4
"""KGSL_MEMSTORE_MAX (kgsl.h): the places of four rings and LPAC's follow."""
_WINDOW: Final = 1 << 31
_MOST_FAULTS: Final = 40  # KGSL_MAX_FAULT_ENTRIES
_FAULTS_NS: Final = 5_000_000_000  # KGSL_MAX_FAULT_TIME_THRESHOLD


def compare(a: int, b: int) -> int:
    """Below 0, 0 or above it as timestamp a is before b; they wrap (kgsl.h, `timestamp_cmp`)."""
    if a == b:
        return 0
    ahead = (a - b) & 0xFFFF_FFFF
    return 1 if ahead < _WINDOW else -1


class Queued:
    """Something in a context's queue.

    Attributes:
        timestamp: its own; 0 where it has none.
    """

    timestamp: int = 0

    def dropped(self) -> None:
        """It will not be carried out."""


class FaultRecord(NamedTuple):
    """A page fault of a context: its address, and KGSL_PAGEFAULT_TYPE_*."""

    address: int
    type: int
    time_ns: int


@dataclass(eq=False)
class Context:
    """A context.

    Attributes:
        flags: as DRAWCTXT_CREATE returned them.
        owner, file: whose it is, and the open file that ends it with itself.
        timestamp: the last one that was queued.
        noticed: the last one whose interrupt has come.
        queue: what waits to go to the ring.
        is_invalid, is_detached: it was given up after a fault; it was destroyed.
        reset_status: KGSL_CTX_STAT_*, until someone asks.
        has_recovered: whether the next submission answers EPROTO.
        has_page_fault: whether its fault need not be tried again.
        fault_times: when it last faulted, for the throttle.
        skips_next: whether the next command counts as one that was recovered.
        total_faults, last_faulted: for CONTEXT_PROPERTY.
        frees: objects that go when a timestamp has retired.
        constraint: the power level that it asks for.
    """

    id: int
    flags: int
    owner: KgslProcess
    file: object
    memstore: Pool
    timestamp: int = 0
    queued_timestamp: int = 0
    noticed: int = 0
    queue: deque[Queued] = field(default_factory=deque)
    is_invalid: bool = False
    is_detached: bool = False
    reset_status: int = kgsl.KGSL_CTX_STAT_NO_ERROR
    has_recovered: bool = False
    has_page_fault: bool = False
    fault_times: list[int] = field(default_factory=list)
    skips_next: bool = False
    total_faults: int = 0
    last_faulted: int = 0
    faults: list[FaultRecord] = field(default_factory=list)
    frees: list[tuple[int, MemObject]] = field(default_factory=list)
    constraint: int = kgsl.KGSL_CONSTRAINT_NONE

    def __str__(self) -> str:
        return f"context {self.id}"

    @property
    def is_bad(self) -> bool:
        """Whether it takes no more commands."""
        return self.is_invalid or self.is_detached

    @property
    def priority(self) -> int:
        """From 0, the highest, to 15."""
        return (self.flags & kgsl.KGSL_CONTEXT_PRIORITY_MASK) >> kgsl.KGSL_CONTEXT_PRIORITY_SHIFT

    @property
    def is_tolerant(self) -> bool:
        """Whether the kernel may time its commands out, run them again, or leave them out."""
        return not self.flags & kgsl.KGSL_CONTEXT_NO_FAULT_TOLERANCE

    @property
    def chooses_timestamps(self) -> bool:
        """Whether users number its commands."""
        return bool(self.flags & kgsl.KGSL_CONTEXT_USER_GENERATED_TS)

    @property
    def consumed(self) -> int:
        """The timestamp of the command that began last."""
        return self.memstore.read_word(self.id * _STRIDE + _START, 4)

    @consumed.setter
    def consumed(self, value: int) -> None:
        self.memstore.write_word(self.id * _STRIDE + _START, 4, value)

    @property
    def retired(self) -> int:
        """The timestamp of the command that ended last."""
        return self.memstore.read_word(self.id * _STRIDE + _END, 4)

    @retired.setter
    def retired(self, value: int) -> None:
        self.memstore.write_word(self.id * _STRIDE + _END, 4, value)

    def has_retired(self, timestamp: int) -> bool:
        """Whether a command has ended."""
        return compare(self.retired, timestamp) >= 0

    def has_noticed(self, timestamp: int) -> bool:
        """Whether the interrupt of its end has come."""
        return compare(self.noticed, timestamp) >= 0

    def is_ahead(self, timestamp: int) -> bool:
        """Whether nothing with that timestamp was queued yet."""
        return compare(timestamp, self.timestamp) > 0

    def add_fault(self, record: FaultRecord) -> None:
        """Remembers a page fault, the last 40 of 5 s (kgsl.c, `kgsl_add_fault`)."""
        since = record.time_ns - _FAULTS_NS
        self.faults = [each for each in self.faults if each.time_ns > since][1 - _MOST_FAULTS :]
        self.faults.append(record)

    def invalidate(self) -> list[Queued]:
        """Gives it up: both timestamps are the last one's now; returns what had waited.

        adreno_drawctxt.c, `adreno_drawctxt_invalidate`.
        """
        self.is_invalid = True
        self.consumed = self.retired = self.noticed = self.timestamp
        left, self.queue = list(self.queue), deque()
        return left
